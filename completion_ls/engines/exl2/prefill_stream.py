"""The draft model's part of a prefill, on a CUDA stream of its own.

The library reads a chunk with the draft model and then, on the same stream, with the target: the first
token, which needs the target alone, waits for both. Here the draft model reads beside the target and
behind the first token. That is safe for these two: each has its own scratch memory, weights and cache,
and what is shared, the page table and the token ids, is on the CPU. Two passes of one model are never
under way at once.

Read in the source of exllamav2, and not yet seen on a card.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from exllamav2 import compat, device
from torch import Tensor


class PrefillStream:
    """Where the draft model reads prompts. Whoever uses its cache next calls `join` before."""

    def __init__(self, index: int) -> None:
        """Work for the GPU `index`."""
        self._index = index
        # Of ordinary priority: the library's own stream, where the target runs, has the highest.
        self._stream = torch.cuda.Stream(index)  # type: ignore[no-untyped-call]
        self._done: torch.cuda.Event | None = None
        _never_wait_for_copies()

    @contextmanager
    def takes(self, draft_model: Any) -> Iterator[None]:
        """What is asked of the draft model in here begins when the block is left, and runs beside what
        the block has given to the target."""
        asked: list[tuple[dict[str, Any], torch.cuda.Event]] = []

        def note(**arguments: Any) -> None:
            # On each stream its own copies: a tensor made on one is not ready for the other.
            arguments["attn_params"] = copy.copy(arguments["attn_params"])
            before = torch.cuda.Event()  # type: ignore[no-untyped-call]
            before.record(torch.cuda.current_stream(self._index))
            asked.append((arguments, before))

        draft_model.forward_chunk = note
        try:
            yield
        finally:
            del draft_model.forward_chunk
        for arguments, before in asked:
            self._run(draft_model, arguments, before)

    def join(self) -> None:
        """Let what is done from here on wait, on the GPU, for what the draft model still reads."""
        if self._done is not None:
            torch.cuda.current_stream(self._index).wait_event(self._done)
            self._done = None

    def _run(self, model: Any, arguments: dict[str, Any], before: torch.cuda.Event) -> None:
        """`before` was recorded behind the last thing that was done to the draft model's cache."""
        self._stream.wait_event(before)
        library = device.global_streams[self._index]
        device.global_streams[self._index] = self._stream
        try:
            model.forward_chunk(**arguments)
        finally:
            device.global_streams[self._index] = library
            device.set_device_streams()
            self._done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._done.record(self._stream)


def _never_wait_for_copies() -> None:
    """Take out of the library that each copy to the GPU waits for all that the GPU is doing, several
    times in a pass: nothing would ever run beside anything."""
    waits = compat.safe_move_tensor
    if getattr(waits, "never_waits", False):
        return

    def move(tensor: Any, to: Any, non_blocking: bool = False) -> Any:
        if isinstance(tensor, Tensor) and tensor.device.type == "cpu" and not tensor.is_pinned():
            stream = device.get_device_stream(torch.device(to).index)
            if stream is not None:
                # From pageable memory, which the driver has copied when this returns.
                with torch.cuda.stream(stream):
                    return tensor.to(torch.device(to), non_blocking=True)
        return waits(tensor, to, non_blocking)

    move.never_waits = True  # type: ignore[attr-defined]
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "exllamav2" and vars(module).get("safe_move_tensor") is waits:
            vars(module)["safe_move_tensor"] = move
