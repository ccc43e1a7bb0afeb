"""The draft model's part of a prefill, on a CUDA stream of its own.

The library reads a chunk with the draft model and then, on the same stream, with the target: the first
token, which needs the target alone, waits for both. Here the draft model reads beside the target and
behind the first token. That is safe for these two: each has its own scratch memory, weights and cache,
and what is shared, the page table and the token ids, is on the CPU. Two passes of one model are never
under way at once.

Read in the source of exllamav2, and not yet seen on a card.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
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

    def mark(self) -> None:
        """What is asked of this stream from here on is to begin behind all that the library's has been
        given by now."""
        self._stream.wait_event(self._event(torch.cuda.current_stream(self._index)))

    @contextmanager
    def current(self) -> Iterator[None]:
        """In here the library works on this stream."""
        own = device.global_streams[self._index]
        device.global_streams[self._index] = self._stream
        try:
            yield
        finally:
            device.global_streams[self._index] = own
            device.set_device_streams()
            self._done = self._event(self._stream)

    def join(self) -> None:
        """Let what is done from here on wait, on the GPU, for what the draft model still reads."""
        if self._done is not None:
            torch.cuda.current_stream(self._index).wait_event(self._done)
            self._done = None

    def _event(self, stream: torch.cuda.Stream) -> torch.cuda.Event:
        """Recorded behind what the stream has been given."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(stream)
        return event


def wait_for_copies(yes: bool) -> None:
    """Whether each copy to the GPU waits for all that the GPU is doing, as the library has it do several
    times in a pass: then nothing ever runs beside anything."""
    now = compat.safe_move_tensor
    waits = getattr(now, "waits", now)
    new = waits if yes else _moving(waits)
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "exllamav2" and vars(module).get("safe_move_tensor") is now:
            vars(module)["safe_move_tensor"] = new


def _moving(waits: Callable[..., Any]) -> Callable[..., Any]:
    def move(tensor: Any, to: Any, non_blocking: bool = False) -> Any:
        if isinstance(tensor, Tensor) and tensor.device.type == "cpu" and not tensor.is_pinned():
            stream = device.get_device_stream(torch.device(to).index)
            if stream is not None:
                # From pageable memory, which the driver has copied when this returns.
                with torch.cuda.stream(stream):
                    return tensor.to(torch.device(to), non_blocking=True)
        return waits(tensor, to, non_blocking)

    move.waits = waits  # type: ignore[attr-defined]
    return move
