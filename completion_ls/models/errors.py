"""The one exception of this room."""


class ModelError(Exception):
    """A model cannot be had or used; the text is a sentence that says why and what to do."""
