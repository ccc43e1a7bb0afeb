---Draws what is still to come at the cursor. Columns are the screen's where tabs are concerned.
local api, fn = vim.api, vim.fn

local M = {}

M.namespace = api.nvim_create_namespace("completion_ls")

local HIGHLIGHT = "CompletionLsGhost"
---Above what others draw at the same place, so that the text goes on where the cursor is.
local PRIORITY = 4096

---Neovim 0.10 has this for one window, and marks must ask for it.
local is_scoped = api.nvim__win_add_ns ~= nil
local scope ---@type integer?

---Draw in one window only, since another on the same buffer has its own cursor. (None of these is a
---public function yet.)
---@param window integer
local function draw_in(window)
  if window == scope then
    return
  end
  if api.nvim__ns_set then
    pcall(api.nvim__ns_set, M.namespace, { wins = { window } })
  elseif is_scoped then
    if scope and api.nvim_win_is_valid(scope) then
      pcall(api.nvim__win_del_ns, scope, M.namespace)
    end
    pcall(api.nvim__win_add_ns, window, M.namespace)
  end
  scope = window
end

---@param buffer integer
---@param row integer
---@param col integer
---@param mark vim.api.keyset.set_extmark
local function set(buffer, row, col, mark)
  mark.priority = PRIORITY
  mark.scoped = is_scoped or nil
  api.nvim_buf_set_extmark(buffer, M.namespace, row, col, mark)
end

---Tabs as so many blanks as they take from a column of the screen on (virtual text shows ^I).
---@param text string
---@param column integer from 0
---@return string
local function expand(text, column)
  if not text:find("\t", 1, true) then
    return text
  end
  local parts, width = {}, column
  for plain, tab in text:gmatch("([^\t]*)(\t?)") do
    parts[#parts + 1] = plain
    width = width + fn.strdisplaywidth(plain, width)
    if tab ~= "" then
      local wide = fn.strdisplaywidth("\t", width)
      parts[#parts + 1] = (" "):rep(wide)
      width = width + wide
    end
  end
  return table.concat(parts)
end

---A line in parts as wide as the window, since virtual lines do not wrap.
---@param line string
---@param width integer
---@return string[]
local function wrap(line, width)
  local parts, part, taken = {}, "", 0
  for _, character in ipairs(fn.split(line, "\\zs")) do
    local wide = fn.strdisplaywidth(character)
    if taken + wide > width and part ~= "" then
      parts[#parts + 1] = part
      part, taken = "", 0
    end
    part, taken = part .. character, taken + wide
  end
  parts[#parts + 1] = part
  return parts
end

---Where in `text` the bytes of `covered` are, in this order and as far right as may be.
---@param text string
---@param covered string
---@return integer[]? positions from 1
local function places(text, covered)
  local found, till = {}, #text
  for at = #covered, 1, -1 do
    local wanted = covered:sub(at, at)
    while till > 0 and text:sub(till, till) ~= wanted do
      till = till - 1
    end
    if till == 0 then
      return nil
    end
    found[at] = till
    till = till - 1
  end
  return found
end

---@param buffer integer
---@param row integer
---@param col integer
---@param text string
local function draw_inline(buffer, row, col, text)
  if text ~= "" then
    set(buffer, row, col, {
      virt_text = { { text, HIGHLIGHT } },
      virt_text_pos = "inline",
      hl_mode = "combine",
    })
  end
end

---Blanks over text of the buffer that will stand elsewhere.
---@param buffer integer
---@param row integer
---@param col integer
---@param text string
local function draw_over(buffer, row, col, text)
  if text ~= "" then
    set(buffer, row, col, {
      virt_text = { { (" "):rep(fn.strdisplaywidth(text)), "Normal" } },
      virt_text_pos = "overlay",
    })
  end
end

---@param lines string[] below the cursor's
---@param tail string what of the cursor's line will stand behind the last
---@return [string, string][][]
local function virtual_lines(lines, tail)
  local window = fn.getwininfo(api.nvim_get_current_win())[1]
  local width = window.width - window.textoff
  local drawn = {}
  for number, line in ipairs(lines) do
    local parts = { expand(line, 0) }
    if vim.wo.wrap then
      parts = wrap(parts[1], width)
    end
    for _, part in ipairs(parts) do
      drawn[#drawn + 1] = { { part, HIGHLIGHT } }
    end
    if number == #lines and tail ~= "" then
      table.insert(drawn[#drawn], { expand(tail, fn.strdisplaywidth(line)), "Normal" })
    end
  end
  return drawn
end

---Draw at the cursor of the current window, in place of what is drawn.
---@param rest completion_ls.Rest
function M.draw(rest)
  local buffer = api.nvim_get_current_buf()
  local row, col = unpack(api.nvim_win_get_cursor(0))
  row = row - 1
  M.clear(buffer)
  draw_in(api.nvim_get_current_win())
  local after = api.nvim_get_current_line():sub(col + 1)
  local covered, tail = after:sub(1, rest.covered), after:sub(rest.covered + 1)
  local lines = vim.split(rest.text, "\n", { plain = true })
  local first = table.remove(lines, 1)
  local column = fn.virtcol(".", true)[1] - 1
  local stays = places(first, covered)
  if stays then
    -- What is covered stays where it is, and the text grows around it.
    local from = 1
    for at, position in ipairs(stays) do
      draw_inline(buffer, row, col + at - 1, expand(first:sub(from, position - 1), column))
      from = position + 1
    end
    draw_inline(buffer, row, col + #covered, expand(first:sub(from), column))
  else
    draw_inline(buffer, row, col, expand(first, column))
    draw_over(buffer, row, col, covered)
  end
  if #lines == 0 then
    return
  end
  draw_over(buffer, row, col + #covered, tail)
  local mark = { virt_lines = virtual_lines(lines, tail) }
  if fn.has("nvim-0.11") == 1 then
    mark.virt_lines_overflow = "scroll" -- with the text, where it does not wrap
  end
  set(buffer, row, col, mark)
end

---@param buffer integer
function M.clear(buffer)
  if api.nvim_buf_is_valid(buffer) then
    api.nvim_buf_clear_namespace(buffer, M.namespace, 0, -1)
  end
end

---Colours that a colour scheme or the user may set. Ours are those of such text, and grey in a
---terminal for which they say nothing.
function M.highlight()
  local name = fn.has("nvim-0.12") == 1 and "ComplHint" or "NonText"
  local own = api.nvim_get_hl(0, { name = name, link = false })
  own.ctermfg = own.ctermfg or 8
  own.default = true
  api.nvim_set_hl(0, HIGHLIGHT, own --[[@as vim.api.keyset.highlight]])
end

return M
