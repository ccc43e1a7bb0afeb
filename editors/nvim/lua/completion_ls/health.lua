---:checkhealth completion_ls
local client = require("completion_ls.client")
local config = require("completion_ls.config")

local health = vim.health

local M = {}

---Plugins that draw ghost text, too, by the module that they load.
local OTHERS = {
  ["copilot"] = "copilot.lua",
  ["codeium"] = "codeium.nvim",
  ["supermaven-nvim"] = "supermaven-nvim",
  ["tabnine"] = "tabnine-nvim",
  ["minuet"] = "minuet-ai.nvim",
  ["llm"] = "llm.nvim",
}

local function check_neovim()
  local version = tostring(vim.version())
  if vim.fn.has("nvim-0.10") == 1 then
    health.ok("Neovim " .. version)
  else
    health.error("Neovim " .. version .. " is too old.", "Install Neovim 0.10 or newer.")
  end
  if config.current.builtin then
    health.info("Neovim's own inline completion draws (`builtin`); text does not stream.")
  end
end

---@return boolean
local function check_program()
  local program = config.current.cmd[1]
  if vim.fn.executable(program) == 0 then
    health.error(("The program %s was not found."):format(program), {
      "Install it (:help completion-ls-install) so that it is on the PATH of Neovim,",
      "or give its path: setup{ cmd = { '/path/to/completion-ls', '--stdio' } }",
    })
    return false
  end
  local done, answer = pcall(function()
    return vim.system({ program, "--version" }, { text = true, timeout = 20000 }):wait()
  end)
  if done and answer.code == 0 then
    health.ok(("%s: %s"):format(vim.fn.exepath(program), vim.trim(answer.stdout)))
    return true
  end
  health.error(
    ("%s --version failed."):format(program),
    "Run it in a terminal; it says what is wrong."
  )
  return false
end

---@param buffer integer
local function check_server(buffer)
  local found = client.of(buffer)
  if not found then
    local any = vim.lsp.get_clients({ name = client.NAME })
    local advice = "Open a file that has a name, then run :checkhealth completion_ls again."
    if #any > 0 then
      found = any[1]
      health.info("A server runs, not for the buffer that was current.")
    else
      health.warn("No server runs.", client.state.state == "failed" and client.state.text or advice)
      return
    end
  end
  if found.server_capabilities.inlineCompletionProvider then
    health.ok("The server offers inline completion.")
  else
    health.error("The server does not offer inline completion.", "Update completion-ls.")
  end
  health.ok("Positions are counted in " .. found.offset_encoding .. ".")
end

local function check_engine()
  local now = client.state
  if now.state == "ready" then
    health.ok("The engine is ready: " .. now.text)
  elseif now.state == "loading" or now.state == "starting" then
    health.info(("The engine is not ready yet: %s (%d %%)"):format(now.text, now.percentage))
  elseif now.state == "failed" then
    health.error(now.text, "Run `completion-ls doctor` in a terminal.")
  end
end

local function check_others()
  local found = false
  for module, name in pairs(OTHERS) do
    if package.loaded[module] then
      found = true
      health.warn(name .. " draws ghost text, too.", "Turn one of the two off.")
    end
  end
  if vim.g.loaded_copilot == 1 then
    found = true
    health.warn("copilot.vim draws ghost text, too.", "Turn one of the two off.")
  end
  local inline_completion = vim.lsp.inline_completion
  if not config.current.builtin and inline_completion and inline_completion.is_enabled() then
    found = true
    health.warn(
      "Neovim's own inline completion draws ghost text, too.",
      "Take vim.lsp.inline_completion.enable() out of your configuration, or set `builtin`."
    )
  end
  if not found then
    health.ok("No other plugin for ghost text was found.")
  end
end

local function check_keys()
  for name, key in pairs(config.current.keys) do
    if key then
      local mapping = vim.fn.maparg(key, "i", false, true)
      if not vim.startswith(mapping.desc or "", "completion-ls") then
        local owner = vim.tbl_isempty(mapping) and "nothing"
          or (mapping.desc or mapping.rhs or "another plugin")
        health.warn(
          ("%s (%s) is mapped to %s."):format(key, name, owner),
          "That is well if it falls back to what was mapped before, as completion menus do "
            .. "(:help completion-ls-others). Otherwise choose another key in `keys`, or call "
            .. "setup after the other plugin's."
        )
      end
    end
  end
end

---The report has a window or a tab of its own; the one before shows what it is about.
---@return integer buffer
local function looked_at()
  local tab = vim.fn.tabpagenr()
  local window = vim.fn.winnr("#")
  if window == 0 and vim.fn.tabpagenr("#") > 0 then
    tab = vim.fn.tabpagenr("#")
    window = vim.fn.tabpagewinnr(tab)
  end
  return vim.fn.tabpagebuflist(tab)[window] or vim.fn.bufnr("#")
end

function M.check()
  local buffer = looked_at()
  health.start("completion-ls: Neovim")
  check_neovim()
  check_others()
  if not client.is_set_up() then
    health.warn("It is not set up.", "Call require('completion_ls').setup{}")
    return
  end
  check_keys()
  health.start("completion-ls: server")
  if check_program() then
    check_server(buffer)
    check_engine()
  end
end

return M
