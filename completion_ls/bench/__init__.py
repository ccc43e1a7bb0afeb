"""Measurements through the whole product: a scripted editor, replay of recorded typing."""
