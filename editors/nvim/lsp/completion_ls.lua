---For vim.lsp.enable("completion_ls") without the plugin's own setup (Neovim 0.11 and newer).
return {
  cmd = { "completion-ls", "--stdio" },
  root_markers = { ".git", ".hg", "pyproject.toml", "package.json", "Cargo.toml", "go.mod" },
}
