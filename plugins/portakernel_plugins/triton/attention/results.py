"""What a call of attention writes: its results, and the log-sum-exp that its gradients want."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from portakernel.authoring.tensors import delivered

Results: TypeAlias = Tensor | tuple[Tensor | None, ...]


@dataclass(frozen=True, slots=True)
class Written:
    """``y`` and, where they are asked for, the log-sum-exp as a result and, again, for the gradients."""

    y: Tensor
    lse: Tensor | None
    logsumexp: Tensor | None
    out: tuple[Tensor | None, ...]

    @classmethod
    def of(
        cls, q: Tensor, shape: Sequence[int], sums: Sequence[int], out: Results | None, return_lse: bool, save: bool
    ) -> Written:
        """Memory for ``y`` of ``shape``, where ``out`` has none, and for sums of float32."""
        given = out if isinstance(out, tuple) else (out,)
        y = q.new_empty(shape) if given[0] is None else given[0]
        lse = q.new_empty(sums, dtype=torch.float32) if return_lse else None
        logsumexp = q.new_empty(sums, dtype=torch.float32) if save else None
        return cls(y, lse, logsumexp, given)

    def results(self) -> Results:
        """What the kernel returns."""
        if self.logsumexp is not None:
            return (self.y, self.logsumexp) if self.lse is None else (self.y, self.lse, self.logsumexp)
        if self.lse is None:
            return self.y
        return (self.y, delivered(self.lse, self.out[1] if len(self.out) > 1 else None))
