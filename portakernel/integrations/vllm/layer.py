"""A layer of vLLM as one that an op serves; which code is vLLM's own for it."""

from __future__ import annotations

import abc
from typing import Any

from portakernel.integrations.served_layer import ServedLayer

NAME = "vllm"
_BATCH_INVARIANT = "VLLM_BATCH_INVARIANT: kernels may differ between batches, unset it to have the op serve"


class VllmLayer(ServedLayer):
    """One of vLLM's layer classes, by its own name, and the op that serves its calls.

    ``word`` is what PORTAKERNEL_CLIENTS and ``enable`` call it by.
    """

    def __init__(self, layer: str, op: str, word: str = "") -> None:
        super().__init__(NAME, layer, op)
        self.word = word or op

    def refusal(self, module: Any, *arguments: Any) -> str:
        """Why the op cannot serve this call; empty where it can."""
        if module.portakernel_batch_invariant:
            return _BATCH_INVARIANT
        return self.lacks(module, *arguments)

    @abc.abstractmethod
    def lacks(self, module: Any, *arguments: Any) -> str:
        """What the op's contract lacks for this call; empty where nothing."""

    def own(self, module: Any, *arguments: Any) -> Any:
        """What vLLM would have computed without portakernel."""
        return module.portakernel_own(*arguments)
