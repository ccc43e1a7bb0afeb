"""Engines compute tokens. `contract` says what one is; every other module is one."""
