---The LSP client: starts the server, starts it again when it is lost, and knows its state.
local config = require("completion_ls.config")
local notice = require("completion_ls.notice")

local api, lsp = vim.api, vim.lsp

local M = {}

M.NAME = "completion_ls"
local SECTION = "completion-ls"
local PARTIAL = "completionLs/partialInlineCompletion"
local STATE = "completionLs/didChangeEngineState"
local SHOWN = "completionLs/didShowDocument"
local USED = "completionLs/didUseSuggestion"
local REPORT = "completionLs/engineReport"
local ROOTS = { ".git", ".hg", "pyproject.toml", "package.json", "Cargo.toml", "go.mod" }

---Milliseconds before a lost server is started again the first time, then twice as long each time.
local FIRST_MS = 500
---One that ran so long did not end for its start.
local STEADY_MS = 60000
local MOST_LOSSES = 4

---@class completion_ls.State
---@field state "starting"|"loading"|"ready"|"failed"|"stopped"
---@field text string what is being done, the model's name, or why there is no engine
---@field percentage integer

---@type completion_ls.State
M.state = { state = "stopped", text = "No server runs.", percentage = 0 }

---What the user's and our own configuration make of the client; nil before setup.
local own ---@type vim.lsp.Config?

---How often the server was lost, one after the other.
local losses = 0
---While the user stops the server: it is not started again.
local is_meant = false
---The program that was not found, so that this is said once.
local missing = nil ---@type string?
---Clients that were started, with the time.
local started = {} ---@type table<integer, integer>

local HAS_METHODS = vim.fn.has("nvim-0.11") == 1

---Call a method of a client: Neovim 0.10 has functions in their place.
---@param client vim.lsp.Client
---@param name string
local function call(client, name, ...)
  if HAS_METHODS then
    return client[name](client, ...)
  end
  return client[name](...)
end

---@param client vim.lsp.Client
---@param method string
---@param params table
function M.notify(client, method, params)
  call(client, "notify", method, params)
end

---@param client vim.lsp.Client
---@param method string
---@param params table
---@param handler fun(err: table?, result: any)
---@param buffer integer
---@return integer? id
function M.request(client, method, params, handler, buffer)
  local ok, id = call(client, "request", method, params, handler, buffer)
  return ok and id or nil
end

---@param client vim.lsp.Client
---@param id integer
function M.cancel(client, id)
  call(client, "cancel_request", id)
end

---Clients that were told to end, which those that hang do late.
local stopped = {} ---@type table<integer, true>

---@param client vim.lsp.Client
---@return boolean
local function is_ending(client)
  return stopped[client.id] or call(client, "is_stopped")
end

---The clients that run, of one buffer or of all.
---@param buffer? integer
---@return vim.lsp.Client[]
local function running(buffer)
  return vim.tbl_filter(function(client)
    return not is_ending(client)
  end, lsp.get_clients({ bufnr = buffer, name = M.NAME }))
end

---An empty table of Lua is a list for JSON, and the server wants objects.
---@param settings table<string, any>
---@return table<string, any>
local function as_objects(settings)
  local objects = vim.empty_dict()
  for name, section in pairs(settings) do
    local is_empty = type(section) == "table" and next(section) == nil
    objects[name] = is_empty and vim.empty_dict() or section
  end
  return objects
end

---The client of a buffer, once it has answered.
---@param buffer integer
---@return vim.lsp.Client?
function M.of(buffer)
  for _, client in ipairs(running(buffer)) do
    if client.initialized and client.server_capabilities.inlineCompletionProvider then
      return client
    end
  end
end

---@param state completion_ls.State
local function change(state)
  M.state = state
  api.nvim_exec_autocmds("User", { pattern = "CompletionLsStatus", data = state, modeline = false })
  vim.cmd.redrawstatus({ bang = true })
end

---@return table
local function capabilities()
  local all = lsp.protocol.make_client_capabilities()
  all.textDocument.inlineCompletion = { dynamicRegistration = false }
  local own_ones = { engineState = true, wholeSettings = true }
  -- Neovim's own inline completion runs the command of what is accepted, and tells no more.
  own_ones.suggestionUse = not config.current.builtin
  all.experimental = { completionLs = own_ones }
  return all
end

---The server is gone. If nobody meant that, it is started again after a while, but not for ever: of
---each end Neovim shows a message of its own.
---@param code integer
---@param signal integer
---@param id integer
local function lost(code, signal, id)
  local ran_ms = started[id] and vim.uv.now() - started[id] or 0
  local was_told = stopped[id]
  started[id], stopped[id] = nil, nil
  if is_meant or was_told or vim.v.exiting ~= vim.NIL then
    if #running() == 0 then
      change({ state = "stopped", text = "No server runs.", percentage = 0 })
    end
    return
  end
  losses = ran_ms >= STEADY_MS and 1 or losses + 1
  local how = signal ~= 0 and "was killed by signal " .. signal or "ended with status " .. code
  local text
  if losses > MOST_LOSSES then
    text = ("The server %s, %d times now. :CompletionLs restart starts it again."):format(
      how,
      losses
    )
  else
    local wait_ms = FIRST_MS * 2 ^ (losses - 1)
    text = ("The server %s. It is started again in %g s."):format(how, wait_ms / 1000)
    vim.defer_fn(M.attach_all, wait_ms)
  end
  if losses == 1 or losses > MOST_LOSSES then
    notice.warn(text)
  end
  change({ state = "failed", text = text, percentage = 0 })
end

---@return boolean
function M.is_set_up()
  return own ~= nil
end

---The configuration of the client, as vim.lsp.config knows it where that exists.
---@param on_partial fun(params: table)
function M.register(on_partial)
  own = {
    name = M.NAME,
    cmd = config.current.cmd,
    root_markers = ROOTS,
    capabilities = capabilities(),
    handlers = {
      [PARTIAL] = function(_, params)
        on_partial(params)
      end,
      [STATE] = function(_, params)
        change(params)
      end,
    },
    on_init = function(client)
      started[client.id] = vim.uv.now()
    end,
    on_exit = vim.schedule_wrap(lost),
  }
  if lsp.config then
    lsp.config(M.NAME, own)
  end
end

---@param buffer integer
---@return boolean
local function is_wanted(buffer)
  return api.nvim_buf_is_loaded(buffer)
    and vim.bo[buffer].buftype == ""
    and api.nvim_buf_get_name(buffer) ~= ""
end

---Also without a root, where Neovim 0.10 would start another for each buffer.
---@param client vim.lsp.Client
---@param wanted vim.lsp.ClientConfig
---@return boolean
local function is_same(client, wanted)
  return client.name == wanted.name
    and client.config.root_dir == wanted.root_dir
    and not is_ending(client)
end

---Start the server for a buffer, or attach the one that runs.
---@param buffer integer
function M.attach(buffer)
  local is_attached = #running(buffer) > 0
  if not own or is_meant or is_attached or not is_wanted(buffer) then
    return
  end
  -- Settings go in here: vim.lsp.config would keep those that a later setup leaves out.
  local resolved = vim.tbl_deep_extend("force", lsp.config and lsp.config[M.NAME] or own, {
    init_options = as_objects(config.current.settings),
    settings = { [SECTION] = as_objects(config.current.settings) },
  })
  resolved.root_dir = resolved.root_dir or vim.fs.root(buffer, ROOTS)
  local program = type(resolved.cmd) == "table" and resolved.cmd[1] or nil
  if program and vim.fn.executable(program) == 0 then
    if missing ~= program then
      missing = program
      local text = (
        "The program %s was not found. Install it (:help completion-ls-install), or give its "
        .. "path: require('completion_ls').setup{ cmd = { '/path/to/completion-ls', '--stdio' } }"
      ):format(program)
      change({ state = "failed", text = text, percentage = 0 })
      notice.error(text)
    end
    return
  end
  if M.state.state == "stopped" or M.state.state == "failed" then
    change({ state = "starting", text = "The server starts.", percentage = 0 })
  end
  lsp.start(resolved, { bufnr = buffer, reuse_client = is_same })
end

---The buffer gets another name. Neovim would go on telling the server about one that it was never
---told to open; so it is closed with its old name, and opened with the next.
---@param buffer integer
function M.rename(buffer)
  for _, client in ipairs(lsp.get_clients({ bufnr = buffer, name = M.NAME })) do
    lsp.buf_detach_client(buffer, client.id)
  end
  vim.schedule(function()
    if api.nvim_buf_is_valid(buffer) then
      M.attach(buffer)
    end
  end)
end

---Attach every buffer that is open.
function M.attach_all()
  for _, buffer in ipairs(api.nvim_list_bufs()) do
    M.attach(buffer)
  end
end

---Stop the server and start it, with the settings as they are now.
function M.restart()
  is_meant = true
  local told = lsp.get_clients({ name = M.NAME })
  for _, client in ipairs(told) do
    stopped[client.id] = true
    call(client, "stop")
  end
  local tries = 0
  local function look()
    tries = tries + 1
    local left = vim.tbl_filter(function(client)
      return lsp.get_client_by_id(client.id) ~= nil
    end, told)
    if #left > 0 and tries < 40 then
      vim.defer_fn(look, 50)
      return
    end
    for _, client in ipairs(left) do
      call(client, "stop", true)
    end
    vim.schedule(function()
      losses, missing, is_meant = 0, nil, false
      M.attach_all()
    end)
  end
  look()
end

---Tell a server that runs the settings of a later `setup`.
function M.tell_settings()
  for _, client in ipairs(lsp.get_clients({ name = M.NAME })) do
    client.settings = { [SECTION] = as_objects(config.current.settings) }
    M.notify(client, "workspace/didChangeConfiguration", { settings = client.settings })
  end
end

---Say which document the user looks at, so that its prompt is computed before the first key.
---@param buffer integer
function M.tell_shown(buffer)
  local client = M.of(buffer)
  if client and buffer == api.nvim_get_current_buf() then
    M.notify(client, SHOWN, lsp.util.make_position_params(0, client.offset_encoding))
  end
end

---Say what the user did with an item. Changes of the buffer are told before it.
---@param buffer integer
---@param id string? of the item
---@param action "accept"|"acceptWord"|"acceptLine"|"reject"
---@param characters? integer that went into the buffer
function M.tell_use(buffer, id, action, characters)
  local client = id and M.of(buffer)
  if client then
    local said = { suggestion = id, action = action, characters = characters }
    M.notify(client, USED, said)
  end
end

---The engine's figures, asked for and waited for a second.
---@param buffer integer
---@return table figures
function M.figures(buffer)
  local client = M.of(buffer)
  if not client then
    return {}
  end
  local answer ---@type table?
  M.request(client, REPORT, vim.empty_dict(), function(_, result)
    answer = result or {}
  end, buffer)
  vim.wait(1000, function()
    return answer ~= nil
  end, 10)
  return answer and answer.figures or {}
end

return M
