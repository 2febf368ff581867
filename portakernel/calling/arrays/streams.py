"""Where a call's work is queued: a kernel reads an array no sooner than its library has filled it.

On a GPU a library queues its work on a stream. DLPack hands a stream over with the array: whoever takes the array names
the stream it will read on, and whoever gives it has that stream wait for what fills the array.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from portakernel.host.locks import make_lock

# DLPack's names for CUDA's default streams: 1 is the legacy one, 2 that of each thread; in HIP 0 is the default one.
LEGACY, PER_THREAD = 1, 2


@dataclass(frozen=True, slots=True)
class Queue:
    """A device's stream, by the handle that libraries pass each other; a CPU has none."""

    device: torch.device
    handle: int | None = None

    @property
    def name(self) -> int | None:
        """The stream as DLPack's ``stream=`` names it."""
        return LEGACY if self.handle == 0 and torch.version.hip is None else self.handle


class Streams(Protocol):
    """What a call asks of the streams of torch."""

    def current(self, device: torch.device) -> Queue:
        """The queue that torch works on now."""
        ...

    def working_on(self, queue: Queue) -> AbstractContextManager[Any]:
        """Inside, kernels are launched on the queue, and results are allocated for it."""
        ...

    def keep(self, queue: Queue, tensors: Sequence[Tensor]) -> None:
        """Keeps the tensors' memory until what is queued by now has run."""
        ...


class TorchStreams:
    """The streams of torch's CUDA devices (ROCm's too)."""

    def __init__(self) -> None:
        self._in_flight: deque[tuple[Any, Sequence[Tensor]]] = deque()
        self._lock = make_lock()

    def current(self, device: torch.device) -> Queue:
        """As ``Streams``."""
        return Queue(device, torch.cuda.current_stream(device).cuda_stream) if device.type == "cuda" else Queue(device)

    def working_on(self, queue: Queue) -> AbstractContextManager[Any]:
        """As ``Streams``."""
        if queue.handle is None:
            return nullcontext()
        if queue.handle == torch.cuda.current_stream(queue.device).cuda_stream:
            return torch.cuda.device(queue.device)
        if queue.handle == 0:
            return torch.cuda.stream(torch.cuda.default_stream(queue.device))
        return torch.cuda.stream(_stream(queue.handle, queue.device))

    def keep(self, queue: Queue, tensors: Sequence[Tensor]) -> None:
        """As ``Streams``; what has run is let go at the next call."""
        if queue.handle is None:
            return
        event = _event()
        event.record(torch.cuda.current_stream(queue.device))
        with self._lock:
            self._in_flight.append((event, tensors))
            while self._in_flight and self._in_flight[0][0].query():
                self._in_flight.popleft()


# PyTorch's own annotations leave these two out.
_stream: Callable[..., torch.cuda.Stream] = torch.cuda.ExternalStream
_event: Callable[..., Any] = torch.cuda.Event


def taken_over(array: Any, queue: Queue) -> Tensor:
    """The tensor on an array's memory, which may be read on ``queue`` from here on.

    Raises:
        Whatever the array's library says of an array that it cannot give away.
    """
    named = {} if queue.name is None else {"stream": queue.name}
    try:  # with a version the memory may be marked read-only, where an older form could not be given at all
        capsule = array.__dlpack__(**named, max_version=(1, 0))
    except TypeError:  # a library that knows no versions
        capsule = array.__dlpack__(**named)
    return from_dlpack(capsule)
