"""An engine that has its tokens from a server over HTTP."""
