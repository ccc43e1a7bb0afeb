---Messages to the user.
local M = {}

---Later, for an error in an autocommand would be taken for one of the command that it belongs to.
---@param text string
---@param level integer of vim.log.levels
local function show(text, level)
  vim.schedule(function()
    vim.notify("completion-ls: " .. text, level)
  end)
end

---@param text string
function M.warn(text)
  show(text, vim.log.levels.WARN)
end

---@param text string
function M.error(text)
  show(text, vim.log.levels.ERROR)
end

return M
