"""Syntax trees of source text, for the languages that have a grammar here."""
