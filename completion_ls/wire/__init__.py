"""Message types, frames and connections between fronts and the engine daemon."""
