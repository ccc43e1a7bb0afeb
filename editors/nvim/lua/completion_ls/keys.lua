---Keys in insert mode. Where nothing is shown a key does what it did before it was mapped. (Plugins
---that map the same key for a buffer, as completion menus do, come first and fall back to ours.)
local config = require("completion_ls.config")

local fn = vim.fn

local M = {}

---Keys that are mapped, each with its mapping before, empty where there was none.
local mapped = {} ---@type table<string, table<string, any>>

---@param key string
local function restore(key)
  pcall(vim.keymap.del, "i", key)
  if not vim.tbl_isempty(mapped[key]) then
    fn.mapset("i", false, mapped[key])
  end
  mapped[key] = nil
end

---The mapping for all buffers, which one of the current buffer may hide.
---@param key string
---@return table<string, any> mapping empty where there is none
local function mapping_of(key)
  local found = fn.maparg(key, "i", false, true)
  if found.buffer ~= 1 then
    return found
  end
  for _, mapping in ipairs(vim.api.nvim_get_keymap("i")) do
    if mapping.lhsraw == found.lhsraw then
      return mapping
    end
  end
  return {}
end

---What a key does without us, as a mapping of its own.
---@param name string
---@param key string
---@return string
local function keep(name, key)
  local plug = ("<Plug>(completion-ls-%s-else)"):format(name)
  local before = mapping_of(key)
  if vim.tbl_isempty(before) then
    vim.keymap.set("i", plug, key)
  else
    local copy = vim.deepcopy(before)
    copy.lhs, copy.lhsraw, copy.lhsrawalt = plug, vim.keycode(plug), nil
    fn.mapset("i", false, copy)
  end
  mapped[key] = before
  return plug
end

---Not by a mapping that returns its keys: those are asked for before what was typed fast is there.
---@param keys string?
---@param otherwise string
local function press(keys, otherwise)
  vim.api.nvim_feedkeys(vim.keycode(keys or otherwise), keys and "in" or "im", false)
end

---Map the keys of the configuration, in place of those that were mapped.
---@param actions table<string, fun(): string?> each returns keys, or nil where it has nothing to do
function M.map(actions)
  for key in pairs(mapped) do
    restore(key)
  end
  for name, act in pairs(actions) do
    local key = config.current.keys[name]
    if key then
      local otherwise = keep(name, key)
      vim.keymap.set("i", key, function()
        press(act(), otherwise)
      end, { desc = "completion-ls: " .. name:gsub("_", " ") })
    end
  end
end

return M
