if vim.g.loaded_completion_ls then
  return
end
vim.g.loaded_completion_ls = true

vim.api.nvim_create_user_command("CompletionLs", function(given)
  require("completion_ls.command").run(given.fargs)
end, {
  nargs = "*",
  desc = "completion-ls: on, off, toggle, status, restart, log",
  complete = function(lead)
    return require("completion_ls.command").complete(lead)
  end,
})
