"""The builds of this process: of kernels that have to be compiled before they can serve a call.

A kernel whose manifest says ``build`` is compiled by ``portakernel.warmup``, for one combination of dtypes, device,
values and sizes at a time (leading dimensions excepted), and never on a call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from portakernel.claims.capability import ReasonCode, Rejection
from portakernel.claims.request import Phase, Request
from portakernel.claims.request_commands import warmup_call
from portakernel.contract import Contract
from portakernel.contract.sizes import parse_size
from portakernel.host.locks import make_lock
from portakernel.registry.kernel import Kernel

BuildUnit = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class BuiltKernel:
    """A kernel as it was built: for one phase, device, combination of dtypes, and sizes."""

    kernel: str
    phase: Phase
    device: str | None
    dtypes: tuple[tuple[str, str], ...]
    unit: BuildUnit


class Builds:
    """The kernels that were built, and for what; and what could not be built, with the reason."""

    def __init__(self) -> None:
        self._done: set[BuiltKernel] = set()
        self._failed: dict[BuiltKernel, Rejection] = {}
        self._units: dict[str, set[BuildUnit]] = {}
        self._lock = make_lock()

    def units(self, op: str) -> set[BuildUnit]:
        """The sizes and values for which some kernel of ``op`` was built; the set itself, which grows."""
        with self._lock:
            return self._units.setdefault(op, set())

    def remember(self, contract: Contract, kernel: Kernel, request: Request) -> None:
        """Remembers that ``kernel`` is built for calls like ``request``."""
        made = _built(contract, kernel, request)
        with self._lock:
            self._failed.pop(made, None)
            self._done.add(made)
            self._units.setdefault(contract.op, set()).add(made.unit)

    def remember_failure(self, contract: Contract, kernel: Kernel, request: Request, reason: Rejection) -> None:
        """Remembers why ``kernel`` cannot be built for calls like ``request``: from now on it is refused for that."""
        with self._lock:
            self._failed[_built(contract, kernel, request)] = reason

    def failure(self, contract: Contract, kernel: Kernel, request: Request) -> Rejection | None:
        """Why ``kernel`` could not be built for calls like ``request``, where that was tried in this process."""
        with self._lock:
            return self._failed.get(_built(contract, kernel, request))

    def rejection(self, contract: Contract, kernel: Kernel, request: Request) -> Rejection | None:
        """Why ``kernel`` cannot serve ``request`` for want of a build."""
        if kernel.build is None:
            return None
        made = _built(contract, kernel, request)
        # a symbol of a traced graph is no size that anything was built for; comparing it would guard the graph
        if all(type(request.dims.get(name, 0)) is int for name in unit_names(contract.at(request.values))):
            if made in self._done:
                return None
            if made in self._failed:
                return self._failed[made]
        where = "" if request.device is not None else " there"
        text = f"is not built for these sizes, dtypes and values; {warmup_call(request)} builds it{where}"
        return Rejection(ReasonCode.NEEDS_BUILD, text)


def without_promises(rejections: Sequence[Rejection]) -> list[Rejection]:
    """The same; where more than a build is missing, that a kernel is not built is said without how to build it.

    What else stands against the kernel keeps `warmup` and `portakernel build` from building it too.
    """
    if all(rejection.code is ReasonCode.NEEDS_BUILD for rejection in rejections):
        return list(rejections)
    return [
        replace(one, text=one.text.rpartition("; ")[0] or one.text) if one.code is ReasonCode.NEEDS_BUILD else one
        for one in rejections
    ]


def unit_names(contract: Contract) -> tuple[str, ...]:
    """The dimensions that a build is for; leading ones may differ from call to call."""
    always = [tensor for tensor in contract.tensors if not tensor.optional]
    fixed = {name for tensor in always for text in tensor.fixed if (name := parse_size(text).name)}
    return tuple(name for name in contract.dims if name in fixed and name in contract.fixed_dims)


def _built(contract: Contract, kernel: Kernel, request: Request) -> BuiltKernel:
    made = contract.at(request.values)
    unit = (*(request.dims.get(name) for name in unit_names(made)), *request.values.values())
    device = request.device.torch_device if request.device is not None else None
    dtypes = request.dtypes
    if request.phase is Phase.BACKWARD:
        # backward does not learn whether an optional argument that it does not read was there
        unknown = {tensor.name for tensor in contract.tensors if tensor.optional} - set(contract.backward_inputs)
        dtypes = {name: dtype for name, dtype in dtypes.items() if name not in unknown}
    return BuiltKernel(kernel.name, request.phase, device, tuple(sorted(dtypes.items())), unit)
