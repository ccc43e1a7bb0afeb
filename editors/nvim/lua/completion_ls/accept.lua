---Accepting as if the text had been typed: one step of undo, and `.` repeats it.
local client = require("completion_ls.client")
local typing = require("completion_ls.typing")

local api, fn = vim.api, vim.fn

local M = {}

---What is accepted next, until the keys that insert it are read.
local accepted = {} ---@type { text: string, id: string?, kind: "all"|"word"|"line" }[]

local ACTIONS = { all = "accept", word = "acceptWord", line = "acceptLine" }

---White space, then a run of keyword characters or of others.
local WORD = [[^\_s*\%(\k\+\|\%(\k\@!\S\)\+\)]]
---A line end belongs to the line below it.
local LINE = [[^\n*[^\n]\+]]

---Insert what was accepted: pasted, it is neither indented nor wrapped again.
function M.insert()
  local one = table.remove(accepted, 1)
  api.nvim_paste(one.text, false, -1)
  if fn.foldclosed(".") ~= -1 then
    vim.cmd.foldopen({ bang = true }) -- as typing does, where 'foldmethod' made a fold of it
  end
  local characters = fn.strchars(one.text)
  client.tell_use(api.nvim_get_current_buf(), one.id, ACTIONS[one.kind], characters)
end

---The part of a text that an action accepts.
---@param text string
---@param kind "all"|"word"|"line"
---@return string
function M.part(text, kind)
  if kind == "all" then
    return text
  end
  local found = fn.matchstr(text, kind == "word" and WORD or LINE)
  return found ~= "" and found or text
end

---The keys that accept what is shown; nil where nothing is.
---@param kind "all"|"word"|"line"
---@return string?
function M.keys(kind)
  local rest = typing.showing()
  if not rest then
    return nil
  end
  local text = M.part(rest.text, kind)
  accepted[#accepted + 1] =
    { text = text, id = rest.id, kind = text == rest.text and "all" or kind }
  local buffer = api.nvim_get_current_buf()
  vim.schedule(function()
    api.nvim_exec_autocmds("User", {
      pattern = "CompletionLsAccepted",
      data = { buf = buffer, kind = kind, text = text },
      modeline = false,
    })
  end)
  local deleted = ""
  if text == rest.text then -- what is replaced goes with the end of the text
    local col = api.nvim_win_get_cursor(0)[2]
    local covered = api.nvim_get_current_line():sub(col + 1, col + rest.covered)
    deleted = ("<Del>"):rep(fn.strcharlen(covered))
  end
  local insert = "<Cmd>lua require('completion_ls.accept').insert()<CR>"
  return "<C-g>u" .. deleted .. insert .. "<C-g>u"
end

return M
