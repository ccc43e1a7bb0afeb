---What `setup` takes.
local M = {}

---The key of each action in insert mode; false: none.
---@class completion_ls.Keys
---@field accept string|false
---@field accept_word string|false
---@field accept_line string|false
---@field next string|false
---@field previous string|false
---@field dismiss string|false
---@field trigger string|false

---@class completion_ls.Config
---@field cmd string[] the server's program and arguments
---@field settings table<string, table<string, any>> the server's settings, by section (README)
---@field filetypes table<string, boolean> false: offer nothing by itself; "*" is all others
---@field auto boolean offer while typing, not only by `trigger`
---@field hide_with_menu boolean show nothing while the completion menu is open
---@field builtin boolean leave drawing to vim.lsp.inline_completion (Neovim 0.12, no streaming)
---@field keys completion_ls.Keys

---@type completion_ls.Config
M.defaults = {
  cmd = { "completion-ls", "--stdio" },
  settings = {},
  filetypes = {},
  auto = true,
  hide_with_menu = false,
  builtin = false,
  keys = {
    accept = "<Tab>",
    accept_word = "<M-Right>",
    accept_line = "<M-C-Right>",
    next = "<M-]>",
    previous = "<M-[>",
    dismiss = "<C-]>",
    trigger = "<M-Bslash>",
  },
}

---@type completion_ls.Config
M.current = vim.deepcopy(M.defaults)

---@param given table<string, any>
---@param known table<string, any>
---@param path string
local function check(given, known, path)
  for name, value in pairs(given) do
    local place = path .. tostring(name)
    local expected = known[name]
    if expected == nil then
      local names = vim.tbl_keys(known)
      table.sort(names)
      error(("setup: there is no `%s`. Known are: %s"):format(place, table.concat(names, ", ")), 0)
    end
    local is_key = path == "keys."
    local fits = type(value) == type(expected) or (is_key and value == false)
    if not fits then
      local wanted = is_key and "a string or false" or ("a " .. type(expected))
      error(("setup: `%s` must be %s, not %s"):format(place, wanted, vim.inspect(value)), 0)
    end
  end
end

---Each key has one action: the one mapped last would take it from the other.
---@param keys completion_ls.Keys
local function check_keys(keys)
  local names = vim.tbl_keys(keys)
  table.sort(names)
  local action_of = {} ---@type table<string, string>
  for _, name in ipairs(names) do
    local key = keys[name]
    if key == "" then
      error(("setup: `keys.%s` must be a key, or false for none"):format(name), 0)
    elseif key then
      local typed = vim.keycode(key)
      local other = action_of[typed]
      if other then
        local text = "setup: `keys.%s` and `keys.%s` are both %s; "
          .. "choose another for one of them, or false"
        error(text:format(other, name, key), 0)
      end
      action_of[typed] = name
    end
  end
end

---@param list any[]
---@return boolean
local function are_words(list)
  local count = 0
  for _, word in pairs(list) do
    count = count + 1
    if type(word) ~= "string" or word == "" then
      return false
    end
  end
  return count > 0 and count == #list
end

---Take what the user gave, over the defaults. Raises a sentence that names a wrong key.
---@param given? table
---@return completion_ls.Config
function M.set(given)
  given = given or {}
  if type(given) ~= "table" then
    error("setup takes a table", 0)
  end
  check(given, M.defaults, "")
  check(given.keys or {}, M.defaults.keys, "keys.")
  for filetype, offers in pairs(given.filetypes or {}) do
    if type(filetype) ~= "string" or type(offers) ~= "boolean" then
      error("setup: `filetypes` is written as { mail = false, ['*'] = true }", 0)
    end
  end
  local now = vim.tbl_deep_extend("force", vim.deepcopy(M.defaults), given)
  -- A list is replaced as a whole; tbl_deep_extend of older versions merges it.
  now.cmd = given.cmd or now.cmd
  if not are_words(now.cmd) then
    error("setup: `cmd` must name a program, such as { 'completion-ls', '--stdio' }", 0)
  end
  check_keys(now.keys)
  M.current = now
  return now
end

---@param filetype string
---@return boolean
function M.offers_in(filetype)
  local own = M.current.filetypes[filetype]
  if own == nil then
    own = M.current.filetypes["*"]
  end
  return own ~= false
end

return M
