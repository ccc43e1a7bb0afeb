"""Servers in the test's own process that speak as vLLM and TabbyAPI do, and that can be made to fail."""
