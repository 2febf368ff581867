"""Each op's calls drawn from its contract, as tensors and as NumPy's arrays on copies of their memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from portakernel.contracts import contract
from portakernel.runtime import dispatcher
from portakernel_kit.conformance.claims import case_dtypes, elements
from portakernel_kit.conformance.inputs import Inputs, draw_inputs, generator


def as_numpy(tensor: torch.Tensor) -> np.ndarray:
    """NumPy's array on a tensor's memory, of the dtype of the same name."""
    name = str(tensor.dtype).removeprefix("torch.")
    if name == "float4_e2m1fn_x2":  # NumPy has no such pairs: bytes
        return tensor.view(torch.uint8).numpy()
    if tensor.dtype.is_floating_point and tensor.dtype not in (torch.float16, torch.float32, torch.float64):
        ml_dtypes = pytest.importorskip("ml_dtypes")
        carried = tensor.view({1: torch.uint8, 2: torch.uint16}[tensor.dtype.itemsize]).numpy()
        return carried.view(getattr(ml_dtypes, name))
    return tensor.numpy()


def as_bytes(result: Any) -> list[tuple[tuple[int, ...], str, bytes]]:
    """Shapes, dtypes and bytes of results, tensors or arrays alike."""
    results = result if isinstance(result, tuple) else (result,)
    arrays = [as_numpy(one.contiguous()) if isinstance(one, torch.Tensor) else np.asarray(one) for one in results]
    return [(array.shape, array.dtype.name, array.tobytes()) for array in arrays]


@dataclass(frozen=True)
class Call:
    """A call of an op: its inputs, and the arguments by position and by name for what is made of each tensor."""

    inputs: Inputs

    @property
    def is_defined_throughout(self) -> bool:
        """Whether each row of the results is defined: grouped_mm leaves those that are in no group as they were."""
        offsets = self.inputs.given.get("offsets") if self.inputs.contract.op == "grouped_mm" else None
        if offsets is None:
            return True
        gather, rows = self.inputs.given.get("gather"), self.inputs.tensors[0]
        return offsets.numel() > 0 and int(offsets[-1]) == len(rows if gather is None else gather)

    def given(self, make: Callable[[torch.Tensor], Any]) -> tuple[list[Any], dict[str, Any]]:
        """The call's arguments, made of its tensors."""
        made = [None if tensor is None else make(tensor) for tensor in self.inputs.tensors]
        return self.inputs.keywords(made)


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that lies in memory as the tensor does, whatever its dtype."""
    size = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) if tensor.numel() else 0
    raw = torch.empty(size, dtype=tensor.dtype)
    byte = {1: torch.uint8, 2: torch.uint16}.get(tensor.dtype.itemsize, tensor.dtype)
    whole = torch.as_strided(tensor.view(byte), (size,), (1,), tensor.storage_offset())
    raw.view(byte).copy_(whole)
    return torch.as_strided(raw.view(byte), tensor.shape, tensor.stride()).view(tensor.dtype)


def small_calls(op: str, count: int) -> list[Call]:
    """So many calls of an op, spread over its contract's small cases and the dtypes that its reference takes."""
    described = contract(op)
    reference = dispatcher().registry.kernels[f"reference.{op}"]
    _, capability = reference.variants[0]
    cases = [case for case in described.cases if elements(described, case) <= 20_000]
    cases = cases[:: max(len(cases) // count, 1)][:count]
    calls = []
    for number, case in enumerate(cases):
        dtypes = case_dtypes(described, capability, case, all_of_them=True)
        chosen = dict(dtypes[number % len(dtypes)])
        calls.append(Call(draw_inputs(described, case, chosen, "cpu", generator(number, op))))
    return [call for call in calls if call.is_defined_throughout]
