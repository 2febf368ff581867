"""What a step of training takes whoever makes it, forward and gradient of one call, the host's time included.

Where PyTorch records a gradient, in C++, a call of few elements is over before a step in Python were: it is picked for
that, and a device's own times do not show it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from portakernel import ops
from portakernel_kit.bench.operands import Operands
from portakernel_kit.bench.stopwatch import Stopwatch

_STEPS, _FEWEST_ROUNDS, _MOST_ROUNDS = 10, 5, 40


def step_times(
    operands: Operands,
    kernels: Sequence[str],
    watch: Stopwatch,
    seconds: float,
    failed: Callable[[str, Exception], None],
) -> dict[str, float]:
    """The microseconds of a step by each of ``kernels``, in rounds that alternate between them; all steps warm.

    Calls are those of ``portakernel.ops``, each of which names its kernel. One that raises, as where a kernel has no
    forward of its own, is given to ``failed`` and has no time; without the first one's time there is none.
    """
    steps: dict[str, Callable[[], None]] = {}
    for kernel in kernels:
        step = _step(operands, kernel)
        try:
            step()
        except Exception as error:  # noqa: BLE001 - the plugin border
            failed(kernel, error)
        else:
            steps[kernel] = step
    if kernels[0] not in steps or len(steps) == 1:
        return {}
    rounds: dict[str, list[float]] = {kernel: [] for kernel in steps}
    deadline = time.perf_counter() + seconds
    for number in range(_MOST_ROUNDS):
        if number >= _FEWEST_ROUNDS and time.perf_counter() > deadline:
            break
        for kernel, step in steps.items():
            watch.synchronise()
            begun = time.perf_counter_ns()
            for _ in range(_STEPS):
                step()
            watch.synchronise()
            rounds[kernel].append((time.perf_counter_ns() - begun) / 1e3 / _STEPS)
    return {kernel: statistics.median(found) for kernel, found in rounds.items()}


def _step(operands: Operands, kernel: str) -> Callable[[], None]:
    """A call of the public op by ``kernel``, and the gradients of what it was given for those of its results."""
    contract = operands.contract
    pairs = zip(operands.tensors, operands.needs, strict=True)
    tensors = [t.detach().requires_grad_() if t is not None and need else t for t, need in pairs]
    leaves = [tensor for tensor, need in zip(tensors, operands.needs, strict=True) if tensor is not None and need]
    parameters = dict(zip(operands.arguments.parameters, operands.values, strict=True))
    function = getattr(ops, contract.op)
    made = operands.arguments.at(operands.values).outputs

    def step() -> None:
        found: Any = function(*tensors, **parameters, kernel=kernel)
        results = found if isinstance(found, (tuple, list)) else (found,)
        named = [(operands.grads[f"grad_{o.name}"], r) for o, r in zip(made, results, strict=True) if o.differentiable]
        torch.autograd.grad([result for _, result in named], leaves, [grad for grad, _ in named], allow_unused=True)

    return step
