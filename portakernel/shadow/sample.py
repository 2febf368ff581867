"""A call that is looked at: copies of its arguments and results, made on the stream that it runs on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from portakernel.calling.caller import OpCaller
from portakernel.shadow.beside_captures import work_beside_captures
from portakernel.shadow.candidates import Candidate
from portakernel.shadow.counts import Skip
from portakernel.tensors.capture import is_capturing
from portakernel.tensors.torch_internals import outside_modes

# Devices whose streams have events with times.
_WITH_EVENTS = ("cuda", "xpu")


class Sample:
    """One inference call. ``before`` it runs its arguments are copied, ``after`` its results."""

    def __init__(self, candidate: Candidate, arguments: Sequence[Any]) -> None:
        self.candidate = candidate
        count = len(candidate.caller.contract.names)
        self._given: Sequence[Tensor | None] = arguments[:count]
        self.values: Sequence[Any] = arguments[count:-1]
        self._out = arguments[-1]
        self.tensors: tuple[Tensor | None, ...] = ()
        self.results: tuple[Any, ...] = ()
        self._device = next(tensor.device for tensor in self._given if tensor is not None)
        self._events: list[Any] = []

    @property
    def caller(self) -> OpCaller:
        """The op's caller."""
        return self.candidate.caller

    def why_not(self, most_bytes: int) -> Skip | None:
        """Why the call is not looked at; None where it can be."""
        if is_capturing():
            return "captured"
        if torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in self._given):
            return "gradient"
        return "bytes" if self.bytes() > most_bytes else None

    def bytes(self) -> int:
        """The bytes of the arguments and the results."""
        tensors = [tensor for tensor in self._given if tensor is not None]
        if self.caller.contract.mutated:
            return sum(tensor.numel() * tensor.itemsize for tensor in (*tensors, *self._written()))
        given = sum(tensor.numel() * tensor.itemsize for tensor in tensors)
        forms = self.caller.arguments.results(self._given, self.values)
        return given + sum(torch.Size(shape).numel() * dtype.itemsize for shape, dtype in forms.values())

    def before(self) -> None:
        """Copies the arguments."""
        with self._copying():
            self.tensors = tuple(None if tensor is None else tensor.detach().clone() for tensor in self._given)

    def after(self, returned: Any) -> None:
        """Copies the results: what was returned, or written where the call said, or where the op writes."""
        if self.caller.contract.mutated:
            found: Sequence[Any] = self._written()
        else:
            whole = returned if self._out is None else self._out
            found = whole if isinstance(whole, (tuple, list)) else (whole,)
        with self._copying():
            self.results = tuple(r.detach().clone() if isinstance(r, Tensor) else r for r in found)
        # what the call was given is its caller's again
        self._given, self._out = (), None

    def wait(self) -> float:
        """Waits until the copies are made; the seconds that the device took for them, where it says."""
        if self._events:
            self._events[-1].synchronize()
            pairs = zip(self._events[::2], self._events[1::2], strict=True)
            return float(sum(begin.elapsed_time(end) for begin, end in pairs)) / 1000
        if self._device.type not in ("cpu", "meta"):
            torch.accelerator.synchronize(self._device)
        return 0.0

    def aside(self) -> AbstractContextManager[None]:
        """A context in which the device works for nobody's calls: on a stream of its own, done at the end."""
        return _aside(self._device)

    def _written(self) -> list[Tensor]:
        contract = self.caller.contract
        pairs = zip(contract.names, self._given, strict=True)
        return [tensor for name, tensor in pairs if name in contract.mutated and tensor is not None]

    @contextmanager
    def _copying(self) -> Iterator[None]:
        # a clone made outside of inference mode is an ordinary tensor; modes are for what the program computes
        with ExitStack() as entered:
            for context in (torch.inference_mode(False), torch.no_grad(), outside_modes()):
                entered.enter_context(context)
            events = self._new_events()
            for event in events[:1]:
                event.record()
            yield
            for event in events[1:]:
                event.record()
            self._events += events

    def _new_events(self) -> list[Any]:
        if self._device.type not in _WITH_EVENTS:
            return []
        module = torch.get_device_module(self._device)
        return [_Moment(module, self._device) for _ in range(2)]


class _Moment:
    """An event on a device's current stream."""

    def __init__(self, module: Any, device: torch.device) -> None:
        self._module, self._device = module, device
        self.event = module.Event(enable_timing=True)
        self.synchronize: Callable[[], None] = self.event.synchronize

    def record(self) -> None:
        self.event.record(self._module.current_stream(self._device))

    def elapsed_time(self, end: _Moment) -> float:
        """The milliseconds from here to ``end``."""
        return float(self.event.elapsed_time(end.event))


@contextmanager
def _aside(device: torch.device) -> Iterator[None]:
    if device.type not in _WITH_EVENTS:
        yield
        return
    if device.type == "cuda":
        work_beside_captures(hip=torch.version.hip is not None)
    module = torch.get_device_module(device)
    stream = module.Stream(device)
    with module.device(device), module.stream(stream):
        yield
    stream.synchronize()
