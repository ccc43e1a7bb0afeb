"""EXL2 models and exllamav2 on the CPU, for tests.

`install` puts reference implementations, in plain PyTorch, in the place of the compiled modules
that exllamav2 needs; its own Python runs as it is. `tiny` makes the models.
"""
