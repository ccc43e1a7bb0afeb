---From a key to ghost text: when to ask the server, what to show meanwhile, and when to stop.
---
---Every change asks anew, since the server answers at once what it knows already. Until that answer
---comes, what was shown before goes on as far as the user types along it.
local Suggestion = require("completion_ls.suggestion")
local client = require("completion_ls.client")
local config = require("completion_ls.config")
local ghost = require("completion_ls.ghost")
local menu = require("completion_ls.menu")

local api, fn = vim.api, vim.fn

local M = {}

local STREAM = "completionLs/streamInlineCompletion"
local INVOKED, AUTOMATIC = 1, 2

M.enabled = true

local count = 0
---The one that was asked for last, and the one that was shown before it.
local latest ---@type completion_ls.Suggestion?
local older ---@type completion_ls.Suggestion?
local request ---@type { client: vim.lsp.Client, id: integer }?
---The items of `latest` to go on by, once all of them are there.
local turn = 0
---What is drawn now.
local shown ---@type { buffer: integer, suggestion: completion_ls.Suggestion }?
---The buffer's state and the cursor when these were looked at last.
local seen ---@type string?
---Buffers whose changes are watched.
local watched = {} ---@type table<integer, true>

---@param name string
---@param data table
local function announce(name, data)
  api.nvim_exec_autocmds("User", { pattern = name, data = data, modeline = false })
end

---@return string
local function moment()
  local row, col = unpack(api.nvim_win_get_cursor(0))
  local buffer = api.nvim_get_current_buf()
  local window = api.nvim_get_current_win()
  return table.concat({ window, buffer, api.nvim_buf_get_changedtick(buffer), row, col }, " ")
end

---@return boolean
local function is_inserting()
  return api.nvim_get_mode().mode:sub(1, 1) == "i"
end

---What a macro records must play the same, and an accept key could not.
---@return boolean
local function is_macro()
  return fn.reg_recording() ~= "" or fn.reg_executing() ~= ""
end

---Whether anything is offered in a buffer without being asked for.
---@param buffer integer
---@return boolean
function M.offers(buffer)
  local own = vim.b[buffer].completion_ls
  return M.enabled
    and config.current.auto
    and own ~= false
    and own ~= 0
    and config.offers_in(vim.bo[buffer].filetype)
end

local function erase()
  if shown then
    local buffer = shown.buffer
    ghost.clear(buffer)
    shown = nil -- before others hear of it: they may end it as well, or raise an error
    announce("CompletionLsHidden", { buf = buffer })
  end
end

---What remains of a suggestion at the cursor.
---@param suggestion completion_ls.Suggestion
---@return completion_ls.Rest?
local function rest_of(suggestion)
  local buffer = api.nvim_get_current_buf()
  local row, col = unpack(api.nvim_win_get_cursor(0))
  if suggestion.buffer ~= buffer or row - 1 < suggestion.place.row then
    return nil
  end
  return suggestion:rest(api.nvim_buf_get_lines(buffer, suggestion.place.row, row, false), col)
end

---Show what there is at the cursor.
local function draw()
  local from = latest
  if latest and #latest.items == 0 and not latest.ended then
    from = older
  end
  local is_hidden = config.current.hide_with_menu and menu.is_open()
  local rest = from and is_inserting() and not is_hidden and rest_of(from)
  if not from or not rest then
    erase()
    return
  end
  local is_new = shown == nil
  if shown and shown.buffer ~= from.buffer then
    ghost.clear(shown.buffer)
  end
  ghost.draw(rest)
  shown = { buffer = from.buffer, suggestion = from }
  if is_new then
    announce("CompletionLsShown", { buf = from.buffer })
  end
end

---Nothing of what was asked for is wanted any more.
function M.dismiss()
  if request then
    client.cancel(request.client, request.id)
    request = nil
  end
  latest, older, turn = nil, nil, 0
  erase()
end

---A change away from where the user types: a suggestion may be about what is there no longer.
---@param buffer integer
local function watch(buffer)
  if watched[buffer] then
    return
  end
  watched[buffer] = api.nvim_buf_attach(buffer, false, {
    on_lines = function(_, _, _, first, last, now_last)
      for _, one in pairs({ latest = latest, older = older }) do
        if one.buffer == buffer then
          one:change(first, last, now_last)
        end
      end
    end,
    on_detach = function()
      watched[buffer] = nil
    end,
    on_reload = function()
      if latest and latest.buffer == buffer then
        vim.schedule(M.dismiss)
      end
    end,
  }) or nil
end

---@param line string
---@param character integer
---@param encoding string
---@return integer bytes
local function byte_of(line, character, encoding)
  if encoding == "utf-8" then
    return math.min(character, #line)
  end
  local ok, found
  if fn.has("nvim-0.11") == 1 then
    ok, found = pcall(vim.str_byteindex, line, encoding, character, false)
  else
    ok, found = pcall(vim.str_byteindex, line, character, encoding == "utf-16")
  end
  return ok and found or #line
end

---@param suggestion completion_ls.Suggestion
---@param items table[] as the server sends them
---@param encoding string
---@return completion_ls.Item[]
local function read(suggestion, items, encoding)
  local line = suggestion.before .. suggestion.after
  local keeps_returns = vim.bo[suggestion.buffer].fileformat == "unix"
  local found = {}
  for _, item in ipairs(items) do
    local text, covered = item.insertText, ""
    if not keeps_returns then
      text = text:gsub("\r\n?", "\n")
    end
    local fits = true
    if item.range then
      local from = byte_of(line, item.range.start.character, encoding)
      local till = byte_of(line, item.range["end"].character, encoding)
      -- What it replaces left of the cursor it must begin with.
      local head = suggestion.before:sub(from + 1)
      fits = item.range.start.line == suggestion.place.row
        and item.range["end"].line == suggestion.place.row
        and text:sub(1, #head) == head
      text = text:sub(#head + 1)
      covered = line:sub(#suggestion.before + 1, till)
    end
    if fits then
      local id = vim.tbl_get(item, "command", "arguments", 1)
      found[#found + 1] =
        { text = text, covered = covered, id = type(id) == "string" and id or nil }
    end
  end
  return found
end

---@param suggestion completion_ls.Suggestion
---@param items table[]
---@param encoding string
local function take(suggestion, items, encoding)
  suggestion.items = read(suggestion, items, encoding)
  suggestion.index = math.max(1, math.min(suggestion.index, #suggestion.items))
  if suggestion.ended and turn ~= 0 then
    suggestion:turn(turn)
    turn = 0
  end
  draw()
end

---A part of a suggestion came.
---@param params { streamId: string, items: table[] }
function M.grow(params)
  if latest and request and latest.id == params.streamId and #params.items > 0 then
    take(latest, params.items, request.client.offset_encoding)
  end
end

---Ask for a suggestion at the cursor.
---@param kind integer
local function ask(kind)
  local buffer = api.nvim_get_current_buf()
  local server = client.of(buffer)
  if not server then
    return
  end
  watch(buffer)
  if shown then
    older = shown.suggestion
  end
  local row, col = unpack(api.nvim_win_get_cursor(0))
  count = count + 1
  local line = api.nvim_get_current_line()
  local asked =
    Suggestion.new(tostring(count), buffer, { row = row - 1, col = col }, line, kind == INVOKED)
  latest, turn = asked, 0
  local params = vim.lsp.util.make_position_params(0, server.offset_encoding)
  params.streamId = asked.id
  params.context = { triggerKind = kind }
  local id = client.request(server, STREAM, params, function(err, result)
    if latest ~= asked then
      return
    end
    asked.ended, request = true, nil
    if err or not result then
      draw()
    else
      take(asked, result.items or {}, server.offset_encoding)
    end
  end, buffer)
  -- An older request is not cancelled: the server sees whether what was typed agrees with it.
  request = id and { client = server, id = id } or nil
end

---The text or the cursor may have changed.
local function look()
  if not is_inserting() then
    M.dismiss()
    return
  end
  local before, now = seen, moment()
  seen = now
  if before == now then
    return
  end
  local buffer = api.nvim_get_current_buf()
  if before and before:match("^%d+ %d+ %d+") == now:match("^%d+ %d+ %d+") then
    -- The cursor went elsewhere without a change.
    M.dismiss()
  elseif latest and latest.index > 1 and rest_of(latest) then
    draw() -- chosen among several, which the server does not know
  elseif M.offers(buffer) and not is_macro() then
    ask(AUTOMATIC)
    draw()
  else
    M.dismiss()
  end
end

---Ask although nothing is offered by itself, and for more than one item.
function M.trigger()
  if is_inserting() and not is_macro() then
    seen = moment()
    ask(INVOKED)
  end
end

---Show the next of the items, or the one before (-1); the first time they are asked for.
---@param step integer
function M.cycle(step)
  if latest and latest.by_hand and latest.ended then
    latest:turn(step)
    draw()
  elseif latest and latest.by_hand then
    turn = turn + step
  else
    M.trigger()
    turn = step
  end
end

---What is shown, at the cursor as it is now, to be accepted. (Keys that come fast are not looked at
---one by one.)
---@return completion_ls.Rest?
function M.showing()
  return shown and is_inserting() and not is_macro() and rest_of(shown.suggestion) or nil
end

---The user wants to see nothing more of it, also where a change before has not been looked at yet.
function M.refuse()
  local rest = M.showing()
  if rest then
    client.tell_use(api.nvim_get_current_buf(), rest.id, "reject")
  end
  seen = moment()
  M.dismiss()
end

---A server belongs to a buffer now. The user may be typing in it already.
---@param buffer integer
function M.attached(buffer)
  if buffer == api.nvim_get_current_buf() and is_inserting() then
    seen = nil
    look()
  end
end

---@param group integer
function M.watch_keys(group)
  local function on(events, callback)
    api.nvim_create_autocmd(events, { group = group, callback = callback })
  end
  menu.watch(group, draw)
  on("InsertEnter", function()
    -- The mode is not yet that of insertion.
    vim.schedule(look)
  end)
  on({ "TextChangedI", "TextChangedP", "CursorMovedI" }, look)
  local function leave()
    seen = nil
    M.dismiss()
  end
  on({ "InsertLeave", "BufLeave", "WinLeave" }, leave)
  -- <C-c> leaves insertion without InsertLeave.
  api.nvim_create_autocmd("ModeChanged", { group = group, pattern = "i*:[^i]*", callback = leave })
end

return M
