"""Kernels whose results are wrong, in every element and differently at each call: what lets them pass is blind."""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
from torch import Tensor

from portakernel.deciding.dispatcher import Dispatcher
from portakernel.registry.kernel import Kernel


class Spoiler:
    """Spoils what a kernel's forward returns; ``spoils``: whether there was anything, once it was called."""

    def __init__(self) -> None:
        self.calls = 0
        self.spoils = False

    def over(self, dispatcher: Dispatcher, kernel: Kernel) -> Dispatcher:
        """``dispatcher`` as it was, but for this kernel."""
        changed = copy.copy(dispatcher)
        changed.readiness = dispatcher.readiness.replacing(kernel.entry, self._over(dispatcher.entry(kernel.entry)))
        return changed

    def _over(self, function: Any) -> Any:
        @functools.wraps(function)
        def spoiling(*arguments: Any, **named: Any) -> Any:
            self.calls += 1
            found = function(*arguments, **named)
            for result in found if isinstance(found, (tuple, list)) else (found,):
                if isinstance(result, Tensor):
                    self.spoils |= result.numel() > 0
                    self._spoil(result)
            return found

        return spoiling

    def _spoil(self, result: Tensor) -> None:
        """Moves every element: by more than itself, so that no rounding explains it."""
        if not result.dtype.is_floating_point:
            mask = 0x77 if self.calls % 2 else 0x33
            result.bitwise_xor_(torch.tensor(mask, dtype=result.dtype, device=result.device))
            return
        numbers = result.to(torch.float64, copy=True)
        moved = numbers + self.calls * (1 + numbers.abs())
        result.copy_(torch.where(moved.isfinite(), moved, 0.0).to(result.dtype))
