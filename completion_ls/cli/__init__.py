"""The command `completion-ls`."""
