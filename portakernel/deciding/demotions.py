"""Kernels that gave a wrong result in this process, and for calls of which kind they serve no more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from portakernel.claims.capability import Rejection
from portakernel.claims.request import Phase, Request
from portakernel.host.locks import make_lock
from portakernel.registry.registry import Registry
from portakernel.tuning.key import Kind


class Demotions:
    """Rejections by op and kind of call, whatever the sizes; forward alone, since backward reads what forward saved.

    A process that demoted nothing looks at no call's kind.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._of: dict[tuple[str, str], dict[str, Rejection]] = {}
        self._lock = make_lock()

    def add(self, kernel: str, request: Request, rejection: Rejection) -> None:
        """Has a kernel serve no call of the request's kind from the next decision on."""
        with self._lock:
            key = request.op, self._kind(request)
            self._of = {**self._of, key: {**self._of.get(key, {}), kernel: rejection}}

    def of(self, request: Request) -> Mapping[str, Rejection]:
        """The kernels that serve no call of the request's kind, each with the reason."""
        if not self._of or request.phase is Phase.BACKWARD:
            return {}
        return self._of.get((request.op, self._kind(request)), {})

    def spelled(self) -> list[tuple[str, str, str]]:
        """All of them, in order: what a compiled graph depends on."""
        return sorted((*key, kernel) for key, kernels in self._of.items() for kernel in kernels)

    def _kind(self, request: Request) -> str:
        kind = Kind.of(request.without_symbols(), self._registry.for_op(request.op))
        return replace(kind, phase="").text
