---:CompletionLs
local client = require("completion_ls.client")
local completion_ls = require("completion_ls")
local notice = require("completion_ls.notice")
local status = require("completion_ls.status")

local M = {}

---@type table<string, fun()>
local actions = {
  on = function()
    completion_ls.enable(true)
  end,
  off = function()
    completion_ls.enable(false)
  end,
  toggle = function()
    completion_ls.enable(not completion_ls.is_enabled())
  end,
  status = function()
    vim.api.nvim_echo({ { table.concat(status.report(), "\n") } }, true, {})
  end,
  restart = client.restart,
  log = function()
    vim.cmd.tabedit(vim.fn.fnameescape(vim.lsp.log.get_filename()))
    vim.cmd("normal! G")
  end,
}

---@param lead string
---@return string[]
function M.complete(lead)
  local names = vim.tbl_filter(function(name)
    return vim.startswith(name, lead)
  end, vim.tbl_keys(actions))
  table.sort(names)
  return names
end

---@param arguments string[]
function M.run(arguments)
  local act = actions[arguments[1] or "status"]
  if act and #arguments <= 1 then
    act()
  else
    local names = table.concat(M.complete(""), ", ")
    notice.error(("the command takes one of %s"):format(names))
  end
end

return M
