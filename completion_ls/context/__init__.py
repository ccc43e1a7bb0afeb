"""Context from other files: which may be read, in which chunks, and which of them are chosen."""
