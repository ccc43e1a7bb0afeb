"""The engine of `bench sweep` on the reference kernels: a program, as `bench.sweep_child` is."""

from __future__ import annotations

import sys
from functools import partial

import torch

from completion_ls.bench.child import serve
from completion_ls.bench.sweep_child import start
from completion_ls.engines.exl2.checks import Card
from support.exl2.install import install

if __name__ == "__main__":
    install()
    torch.set_num_threads(1)
    sys.exit(serve(partial(start, card=lambda: Card("reference kernels", 2**40))))
