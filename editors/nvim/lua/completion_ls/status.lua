---What the server and the engine are doing, in words.
local client = require("completion_ls.client")
local typing = require("completion_ls.typing")

local M = {}

---For a statusline: empty where no server belongs to the buffer.
---@return string
function M.line()
  local buffer = vim.api.nvim_get_current_buf()
  local now = client.state
  if
    #vim.lsp.get_clients({ bufnr = buffer, name = client.NAME }) == 0 and now.state ~= "failed"
  then
    return ""
  end
  if not typing.offers(buffer) then
    return "completion-ls off"
  elseif now.state == "loading" then
    -- A statusline takes % for the start of an item.
    return ("completion-ls %d %%%%"):format(now.percentage)
  elseif now.state == "ready" then
    return "completion-ls"
  end
  return now.state == "failed" and "completion-ls !" or "completion-ls …"
end

---@param figures table<string, any>
---@param format string
---@param name string
---@param factor? number
local function line(figures, format, name, factor)
  local value = figures[name]
  return type(value) == "number" and value > 0 and format:format(value * (factor or 1)) or nil
end

---@return string[]
function M.report()
  local buffer = vim.api.nvim_get_current_buf()
  if not client.is_set_up() then
    return { "completion-ls is not set up. Call require('completion_ls').setup{}" }
  end
  local now = client.state
  local lines = { ("completion-ls: %s. %s"):format(now.state, now.text) }
  if now.state == "loading" then
    lines[1] = ("%s (%d %%)"):format(lines[1], now.percentage)
  end
  local figures = client.figures(buffer)
  local checked = figures.draft_tokens_checked or 0
  local accepted = { share = checked > 0 and figures.draft_tokens_accepted / checked or 0 }
  local told = {
    line(figures, "First token: %.0f ms (median)", "first_token_ms_p50"),
    line(figures, "Tokens per second: %.0f", "tokens_per_second"),
    line(accepted, "Drafts accepted: %.0f %%", "share", 100),
    line(figures, "Keys answered without the model: %.0f %%", "answered_without_pass_share", 100),
    not typing.offers(buffer) and "Off: nothing is offered here by itself." or nil,
  }
  for index = 1, 5 do
    lines[#lines + 1] = told[index]
  end
  return lines
end

return M
