---Inline code completion (ghost text) from a model on this machine. See :help completion-ls
local accept = require("completion_ls.accept")
local builtin = require("completion_ls.builtin")
local client = require("completion_ls.client")
local config = require("completion_ls.config")
local ghost = require("completion_ls.ghost")
local keys = require("completion_ls.keys")
local notice = require("completion_ls.notice")
local status = require("completion_ls.status")
local typing = require("completion_ls.typing")

local api = vim.api

local M = {}

M.statusline = status.line

---@return boolean
local function is_builtin()
  return config.current.builtin
end

---Let Neovim draw, or no longer.
local function tell_builtin()
  for _, one in ipairs(builtin.is_there() and vim.lsp.get_clients({ name = client.NAME }) or {}) do
    for buffer in pairs(one.attached_buffers) do
      builtin.enable(buffer, is_builtin() and typing.offers(buffer))
    end
  end
end

---Accept what is shown: all of it, a word or a line. False where nothing is shown.
---@param kind? "all"|"word"|"line"
---@return boolean
function M.accept(kind)
  if is_builtin() then
    return builtin.accept() ~= nil
  end
  local typed = accept.keys(kind or "all")
  if typed then
    api.nvim_feedkeys(vim.keycode(typed), "in", false)
  end
  return typed ~= nil
end

---Show nothing more of this suggestion. False where nothing is shown.
---@return boolean
function M.dismiss()
  local was_shown = typing.showing() ~= nil
  typing.refuse()
  return was_shown
end

---Ask for suggestions here, also where none are offered by themselves.
M.trigger = typing.trigger

---@param step integer
local function cycle(step)
  if is_builtin() then
    builtin.cycle(step)
  else
    typing.cycle(step)
  end
end

---Show the next suggestion for this place.
function M.next()
  cycle(1)
end

---Show the one before.
function M.previous()
  cycle(-1)
end

---Whether something is shown at the cursor.
---@return boolean
function M.is_visible()
  return typing.showing() ~= nil
end

---Offer suggestions while typing, or no longer.
---@param on? boolean true where it is left out
function M.enable(on)
  typing.enabled = on ~= false
  if not typing.enabled then
    typing.dismiss()
  end
  tell_builtin()
  vim.cmd.redrawstatus({ bang = true })
end

---@return boolean
function M.is_enabled()
  return typing.enabled
end

M.restart = client.restart

---What an action of a key returns: no keys, since the key is used up.
---@param act fun(step?: integer)
---@param argument? integer
local function used(act, argument)
  return function()
    act(argument)
    return ""
  end
end

local function map_keys()
  ---@param kind "all"|"word"|"line"
  local function accepting(kind)
    return function()
      return accept.keys(kind)
    end
  end
  local actions = {
    accept = is_builtin() and builtin.accept or accepting("all"),
    next = used(cycle, 1),
    previous = used(cycle, -1),
  }
  if not is_builtin() then
    actions.accept_word = accepting("word")
    actions.accept_line = accepting("line")
    actions.trigger = used(typing.trigger)
    actions.dismiss = function()
      return typing.showing() and used(typing.refuse)() or nil
    end
  end
  keys.map(actions)
end

---@param given? table see completion_ls.Config and :help completion-ls-setup
function M.setup(given)
  if vim.fn.has("nvim-0.10") == 0 then
    notice.error("Neovim 0.10 or newer is needed.")
    return
  end
  local ok, problem = pcall(config.set, given)
  if not ok then
    notice.error(problem --[[@as string]])
    return
  end
  if is_builtin() and not builtin.is_there() then
    notice.warn("`builtin` needs Neovim 0.12; the plugin draws by itself.")
    config.current.builtin = false
  end
  local is_set_up = client.is_set_up()
  ghost.highlight()
  client.register(typing.grow)
  map_keys()
  local group = api.nvim_create_augroup("completion_ls", {})
  api.nvim_create_autocmd("ColorScheme", { group = group, callback = ghost.highlight })
  if not is_builtin() then
    typing.watch_keys(group)
  end
  ---@param events string|string[]
  ---@param act fun(buffer: integer)
  local function on(events, act)
    api.nvim_create_autocmd(events, {
      group = group,
      callback = function(event)
        act(event.buf)
      end,
    })
  end
  on({ "FileType", "BufReadPost", "BufNewFile" }, client.attach)
  on("BufFilePre", client.rename)
  on({ "BufEnter", "FocusGained" }, client.tell_shown)
  api.nvim_create_autocmd("LspAttach", {
    group = group,
    callback = function(event)
      local attached = vim.lsp.get_client_by_id(event.data.client_id)
      if not attached or attached.name ~= client.NAME then
        return
      end
      client.tell_shown(event.buf)
      if is_builtin() then
        builtin.enable(event.buf, typing.offers(event.buf))
      else
        typing.attached(event.buf)
      end
    end,
  })
  if is_set_up then
    client.tell_settings()
    tell_builtin()
    typing.dismiss()
  end
  client.attach_all()
end

return M
