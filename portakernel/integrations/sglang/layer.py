"""A layer of SGLang as one that an op serves; which code is SGLang's own for it."""
# pyright: reportMissingImports=false

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, ClassVar

from sglang.kernels.fused_op import get_fused_op_backend
from sglang.srt.batch_invariant_ops import is_batch_invariant_mode_enabled

from portakernel.integrations.client import record
from portakernel.integrations.served_layer import ServedLayer

NAME = "sglang"
_INVARIANT = "SGLang's batch invariant mode: kernels may differ between batches"


class SglangLayer(ServedLayer):
    """A layer class of SGLang, or a subclass of one, and the op that serves its calls.

    ``names`` are the parameters of SGLang's forward in order, of which the op knows the first ``known``. ``original``
    is that forward; ``formula`` is empty, or why the class does not compute what the op does.
    """

    names: ClassVar[tuple[str, ...]]
    known: ClassVar[int]

    def __init__(self, layer: str, op: str, original: Callable[..., Any], formula: str = "") -> None:
        super().__init__(NAME, layer, op)
        self.original = original
        self.formula = formula

    @abc.abstractmethod
    def lacks(self, module: Any, *arguments: Any) -> str:
        """What the op's contract lacks for this call; empty where nothing."""

    def refusal(self, module: Any, *arguments: Any) -> str:
        """Why the op cannot serve this call; empty where it can."""
        if reason := self.formula or module.portakernel_pinned:
            return str(reason)
        if (forced := get_fused_op_backend()) is not None:
            return f"SGLANG_FORCE_FUSED_OP_BACKEND={forced.value}; unset it to have the op serve"
        return _INVARIANT if is_batch_invariant_mode_enabled() else self.lacks(module, *arguments)

    def own(self, module: Any, *arguments: Any) -> Any:
        """What SGLang would have computed without portakernel."""
        return self.original(module, *arguments)

    def call(self, module: Any, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """A call of SGLang's forward, by the op or by SGLang, with everything that it was given."""
        values = {**dict(zip(self.names, given, strict=False)), **named}
        unknown = [name for name, each in values.items() if name not in self.names[: self.known] and each is not None]
        if unknown:
            record(self.client, self.op, f"{', '.join(sorted(unknown))}: the op has no such argument", self.layer)
            return self.original(module, *given, **named)
        return self(module, *(values.get(name) for name in self.names[: self.known]))
