---Whether a completion menu is open: Neovim's, or that of nvim-cmp or blink.cmp, whose menus are
---windows like any other.
local api, fn = vim.api, vim.fn

local M = {}

local is_open = false
---What is called when one opens or closes.
local changed ---@type fun()
---nvim-cmp's events are listened to.
local is_heard = false

---@param open boolean
---@return fun()
local function becomes(open)
  return function()
    is_open = open
    vim.schedule(changed)
  end
end

local function hear_cmp()
  local cmp = package.loaded["cmp"]
  if cmp and cmp.event and not is_heard then
    is_heard = true
    cmp.event:on("menu_opened", becomes(true))
    cmp.event:on("menu_closed", becomes(false))
  end
end

---@return boolean
function M.is_open()
  return is_open or fn.pumvisible() == 1
end

---@param group integer
---@param callback fun()
function M.watch(group, callback)
  changed = callback
  for pattern, open in pairs({ BlinkCmpMenuOpen = true, BlinkCmpMenuClose = false }) do
    api.nvim_create_autocmd("User", { group = group, pattern = pattern, callback = becomes(open) })
  end
  api.nvim_create_autocmd("InsertEnter", {
    group = group,
    callback = function()
      is_open = false
      vim.schedule(hear_cmp) -- it may be loaded by this event
    end,
  })
end

return M
