"""The engine daemon: one process holds the model and serves every editor window of this user."""
