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
from torch import Tensor

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
    steps: dict[str, Callable[[], tuple[Tensor | None, ...]]] = {}
    for kernel in kernels:
        step = training_step(operands, kernel)
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


def training_step(operands: Operands, kernel: str) -> Callable[[], tuple[Tensor | None, ...]]:
    """A call of the public op by ``kernel``, and the gradients of what it was given for those of its results.

    It returns its results, and behind them a gradient for each argument, None for those that need none. Backward is by
    whichever kernel dispatch picks beside ``kernel``. The operands have gradients of the results drawn.
    """
    contract, function = operands.contract, getattr(ops, operands.contract.op)
    needed = [need and tensor is not None for tensor, need in zip(operands.tensors, operands.needs, strict=True)]
    pairs = zip(operands.tensors, needed, strict=True)
    tensors = [t.detach().requires_grad_() if need and t is not None else t for t, need in pairs]
    leaves = [tensor for tensor, need in zip(tensors, needed, strict=True) if need and tensor is not None]
    positional = [t for t, argument in zip(tensors, contract.tensors, strict=True) if not argument.keyword]
    named: dict[str, Any] = {a.name: t for t, a in zip(tensors, contract.tensors, strict=True) if a.keyword}
    named |= dict(zip(operands.arguments.parameters, operands.values, strict=True))
    # what need not be looked up in a step is not: the host's time counts
    made = operands.arguments.at(operands.values).outputs
    trained = [output.differentiable for output in made]
    grads = [operands.grads[f"grad_{output.name}"] for output in made if output.differentiable]

    def step() -> tuple[Tensor | None, ...]:
        with torch.enable_grad():
            found: Any = function(*positional, **named, kernel=kernel)
        results = found if isinstance(found, (tuple, list)) else (found,)
        outputs = [result for result, is_trained in zip(results, trained, strict=True) if is_trained]
        gradients = torch.autograd.grad(outputs, leaves, grads, allow_unused=True)
        by_place = iter(gradients)
        return (*(result.detach() for result in results), *(next(by_place) if need else None for need in needed))

    return step
