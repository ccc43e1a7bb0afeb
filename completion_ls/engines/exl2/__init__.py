"""The engine on exllamav2."""
