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
  ---@param format string
  ---@param value any
  ---@param factor? number
  local function tell(format, value, factor)
    if type(value) == "number" and value > 0 then
      lines[#lines + 1] = format:format(value * (factor or 1))
    end
  end
  tell("First token: %.0f ms (median)", figures.first_token_ms_p50)
  tell("Tokens per second: %.0f", figures.tokens_per_second)
  local checked = figures.draft_tokens_checked or 0
  if checked > 0 then
    tell("Drafts accepted: %.0f %%", figures.draft_tokens_accepted / checked, 100)
  end
  tell("Keys answered without the model: %.0f %%", figures.answered_without_pass_share, 100)
  local counts = figures.suggestions or {}
  if (counts.shown or 0) > 0 then
    lines[#lines + 1] = ("Suggestions accepted: %d of %d"):format(counts.accepted, counts.shown)
  end
  local judged = counts.characters_judged_after_5_min or 0
  if judged > 0 then
    local kept = counts.characters_kept_after_5_min
    tell("Accepted text kept after 5 minutes: %.0f %%", kept / judged, 100)
  end
  if not typing.offers(buffer) then
    lines[#lines + 1] = "Off: nothing is offered here by itself."
  end
  return lines
end

return M
