"""Inline code completion from a model on the developer's own machine, as a language server."""

__version__ = "0.1.0"
