"""Counters that launches find as zeros and leave as zeros: by them programs know which one is the last to finish."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.cuda import current_stream

from portakernel.authoring.host import make_lock
from portakernel.authoring.tensors import is_capturing

# Counters of a device for calls that are captured, 4 MiB: those of 512 calls of 256 sequences with 8 key heads.
FOR_CAPTURES = 1 << 20
# So many begin at multiples of 16 bytes.
_ALIGNED = 4


class Counters:
    """Zeros of a device, which every launch leaves as zeros: a stream's own, and others for captured calls.

    A captured call keeps its own, since graphs may be replayed anywhere and beside eager calls; it takes them from what
    was made before, so that no replay has to clear them first (1.1 us on an H200). When all are taken, it does.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._taken, self._lock = device, 0, make_lock()
        self._for_captures = self._zeros(FOR_CAPTURES)
        self._of_streams: dict[int, Tensor] = {}

    def of_stream(self, stream: int, count: int) -> Tensor:
        """So many, or more: of what runs on one stream, one launch after the other has them."""
        held = self._of_streams.get(stream)
        if held is None or held.numel() < count:
            held = self._of_streams[stream] = self._zeros(max(1024, 1 << (count - 1).bit_length()))
        return held

    def of_capture(self, count: int) -> Tensor:
        """So many, for good: from an address on that 16 divides, as all others are, for which launches are compiled."""
        with self._lock:
            first, self._taken = self._taken, self._taken + -(-count // _ALIGNED) * _ALIGNED
        return self._for_captures[first : first + count] if first + count <= FOR_CAPTURES else self._zeros(count)

    def _zeros(self, count: int) -> Tensor:
        return torch.zeros(count, dtype=torch.int32, device=self._device)


HELD: dict[torch.device, Counters] = {}


def counters(device: torch.device, count: int) -> Tensor:
    """So many zeros, or more, for a launch on ``device`` that leaves zeros."""
    held, captured = HELD.get(device), is_capturing()
    if device.type != "cuda" or (held is None and captured):  # what is made in a capture is the graph's own
        return torch.zeros(count, dtype=torch.int32, device=device)
    if held is None:
        held = HELD.setdefault(device, Counters(device))
    return held.of_capture(count) if captured else held.of_stream(current_stream(device).cuda_stream, count)
