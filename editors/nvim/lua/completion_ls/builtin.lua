---Neovim's own inline completion (0.12) instead of our drawing. It does not stream.
local api = vim.api

local M = {}

---@return boolean
function M.is_there()
  return vim.lsp.inline_completion ~= nil
end

---In a buffer: Neovim 0.12 does not turn it off again for a client.
---@param buffer integer
---@param on boolean
function M.enable(buffer, on)
  local filter = { bufnr = buffer }
  if on ~= vim.lsp.inline_completion.is_enabled(filter) then
    vim.lsp.inline_completion.enable(on, filter)
  end
end

---Accept an item at the cursor. Neovim 0.12 would put it where it was asked for, and what was typed
---since would be there twice.
---@param item vim.lsp.inline_completion.Item
local function insert(item)
  local row, col = unpack(api.nvim_win_get_cursor(0))
  row = row - 1
  local line = api.nvim_get_current_line()
  local text = item.insert_text --[[@as string]]
  local from_row, from, _, till = item.range:to_extmark()
  local typed = line:sub(from + 1, col)
  if from_row ~= row or col < from or text:sub(1, #typed) ~= typed then
    return -- it was about another text
  end
  local lines = vim.split((text:sub(#typed + 1):gsub("\r\n?", "\n")), "\n", { plain = true })
  local covered = math.max(0, till - from)
  api.nvim_buf_set_text(0, row, col, row, math.min(col + covered, #line), lines)
  local end_col = #lines == 1 and col + #lines[1] or #lines[#lines]
  api.nvim_win_set_cursor(0, { row + #lines, end_col })
  -- As Neovim does it behind what it puts in by itself.
  local client = vim.lsp.get_client_by_id(item.client_id)
  if item.command and client then
    client:exec_cmd(item.command, { bufnr = api.nvim_get_current_buf() })
  end
end

---@return string? keys where something was accepted
function M.accept()
  return vim.lsp.inline_completion.get({ on_accept = insert }) and "" or nil
end

---@param step integer
function M.cycle(step)
  vim.lsp.inline_completion.select({ count = step })
end

return M
