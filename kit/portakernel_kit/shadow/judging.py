"""One served call's results, held as `portakernel tune` holds them: by the op's own rule, large ones in part.

The host computes the reference where that takes seconds at most; else the accelerator does, if it has float64 and room.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from portakernel.calling.caller import OpCaller
from portakernel.claims.request import Phase
from portakernel.deciding.decision import Decision
from portakernel.tuning.record import Verdict
from portakernel_kit.bench.contenders import Contender
from portakernel_kit.bench.operands import Operands
from portakernel_kit.bench.traffic import forward_cost
from portakernel_kit.conformance.mixed_numbers import LARGEST_EXPONENT
from portakernel_kit.tune.judging import Numerics


def judge(
    caller: OpCaller,
    decision: Decision,
    tensors: Sequence[Tensor | None],
    values: Sequence[Any],
    results: Sequence[Any],
) -> tuple[Verdict, str]:
    """The verdict on ``results`` of an inference call with these arguments, and what there is to say of it.

    Of an op that writes arguments, ``tensors`` have them as they were, ``results`` as they are now. Nothing is judged
    that the reference cannot say in seconds.
    """
    chosen, device = decision.chosen, decision.request.device
    assert chosen is not None
    assert device is not None
    operands = Operands(caller.contract, caller.arguments, tuple(tensors), tuple(values))

    def returned(_: str) -> Any:
        for written, result in zip(operands.written.values(), results, strict=True) if operands.written else ():
            written.copy_(result)
        return tuple(results)

    contenders = {chosen.name: Contender(chosen)}
    request = caller.arguments.request(operands.tensors, values, Phase.INFERENCE)
    cost = forward_cost(caller.contract, request, operands.lengths())
    numerics = Numerics(caller, device, Phase.INFERENCE, cost, [operands], contenders, returned, prefers_host=True)
    found = numerics.after(chosen.name)
    if found.verdict is Verdict.WRONG and (names := [name for name, tensor in _floats(operands) if _is_beyond(tensor)]):
        text = f"{' and '.join(names)} has numbers beyond 2**{LARGEST_EXPONENT}, whose squares float32 cannot sum"
        return Verdict.UNJUDGED, text
    return found.verdict, found.detail


def _floats(operands: Operands) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in zip(operands.contract.names, operands.tensors, strict=True):
        if tensor is not None and tensor.dtype in (torch.float32, torch.bfloat16, torch.float16):
            yield name, tensor


def _is_beyond(tensor: Tensor) -> bool:
    """Whether numbers are larger than those that kernels are held to, since ops accumulate squares in float32."""
    numbers = tensor.float().abs()
    return bool((numbers.isfinite() & (numbers > 2.0**LARGEST_EXPONENT)).any())
