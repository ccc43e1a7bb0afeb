"""The language server: pygls, open documents, suggestion sessions, rules of text."""
