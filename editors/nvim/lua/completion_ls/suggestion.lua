---One suggestion: what it was asked for, and what of it is still to come at a cursor. Nothing of
---Neovim's state in here.

---@class completion_ls.Place
---@field row integer counted from 0
---@field col integer bytes

---@class completion_ls.Item
---@field text string with "\n" between lines
---@field covered string what stands behind the cursor and is replaced, mostly closers
---@field id? string its name for the server

---What is drawn at a cursor.
---@class completion_ls.Rest
---@field text string
---@field covered integer bytes behind the cursor that `text` replaces
---@field id? string of the item

---@class completion_ls.Suggestion
---@field id string
---@field buffer integer
---@field place completion_ls.Place where it was asked for
---@field before string the line left of that place
---@field after string the line right of it
---@field by_hand boolean the user asked for it: then there may be several items
---@field items completion_ls.Item[]
---@field index integer the item in turn, from 1
---@field ended boolean no more text will come
---@field stale boolean the buffer changed elsewhere
---@field bottom integer the row below the lines that typing along it may change
local Suggestion = {}
Suggestion.__index = Suggestion

local CLOSERS = "^[%)%]}>\"'`]+$"

---@param id string
---@param buffer integer
---@param place completion_ls.Place
---@param line string
---@param by_hand boolean
---@return completion_ls.Suggestion
function Suggestion.new(id, buffer, place, line, by_hand)
  return setmetatable({
    id = id,
    buffer = buffer,
    place = place,
    before = line:sub(1, place.col),
    after = line:sub(place.col + 1),
    by_hand = by_hand,
    items = {},
    index = 1,
    ended = false,
    stale = false,
    bottom = place.row + 1,
  }, Suggestion)
end

---Whether `text` has the bytes of `parts`, in this order, with anything between.
---@param text string
---@param parts string
local function contains_in_order(text, parts)
  local from = 1
  for at = 1, #parts do
    local found = text:find(parts:sub(at, at), from, true)
    if not found then
      return false
    end
    from = found + 1
  end
  return true
end

---What was typed since: the text from the place it was asked for to a cursor.
---@param lines string[] from the suggestion's row down to the cursor's
---@param col integer of the cursor, in the last of them
---@return string? typed nil where something else changed
---@return string after the line behind the cursor
function Suggestion:typed(lines, col)
  local last = lines[#lines]
  local after = last:sub(col + 1)
  if lines[1]:sub(1, #self.before) ~= self.before or (#lines == 1 and col < #self.before) then
    return nil, after
  end
  if #lines == 1 then
    return last:sub(#self.before + 1, col), after
  end
  local parts = { lines[1]:sub(#self.before + 1) }
  vim.list_extend(parts, lines, 2, #lines - 1)
  parts[#parts + 1] = last:sub(1, col)
  return table.concat(parts, "\n"), after
end

---How much behind the cursor the rest of an item replaces, where the line behind it is `after` now.
---@param item completion_ls.Item
---@param typed string
---@param rest string
---@param after string
---@return integer? bytes nil where the line behind the cursor changed in another way
function Suggestion:_covered(item, typed, rest, after)
  if after == self.after then
    return #item.covered
  end
  if #after > #self.after then
    -- An editor that closes brackets put closers there.
    local added = after:sub(1, #after - #self.after)
    if added .. self.after ~= after or not added:match(CLOSERS) then
      return nil
    end
    return contains_in_order(rest, added .. item.covered) and #added + #item.covered or 0
  end
  -- A closer was typed over.
  local gone = self.after:sub(1, #self.after - #after)
  local is_typed_over = gone .. after == self.after
    and item.covered:sub(1, #gone) == gone
    and typed:sub(-#gone) == gone
  return is_typed_over and #item.covered - #gone or nil
end

---What is still to come of the item in turn, at a cursor.
---@param lines string[] from the suggestion's row down to the cursor's
---@param col integer of the cursor, in the last of them
---@return completion_ls.Rest?
function Suggestion:rest(lines, col)
  local item = self.items[self.index]
  if not item or self.stale or #lines == 0 then
    return nil
  end
  local typed, after = self:typed(lines, col)
  if not typed or item.text:sub(1, #typed) ~= typed then
    return nil
  end
  local text = item.text:sub(#typed + 1)
  if text == "" then
    return nil
  end
  local covered = self:_covered(item, typed, text, after)
  if not covered or text == after:sub(1, covered) then
    return nil -- all of it is there, and nothing would be drawn
  end
  return { text = text, covered = covered, id = item.id }
end

---Lines of the buffer changed: rows `first` up to `last`, exclusive, end at `now_last` now.
---@param first integer
---@param last integer
---@param now_last integer
function Suggestion:change(first, last, now_last)
  if first < self.place.row or last > self.bottom then
    self.stale = true
  end
  self.bottom = self.bottom + now_last - last
end

---Go to another item.
---@param step integer
function Suggestion:turn(step)
  if #self.items > 0 then
    self.index = (self.index - 1 + step) % #self.items + 1
  end
end

return Suggestion
