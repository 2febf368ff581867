"""A pre-norm residual block that predicts the next byte of a text: forward, and one training step, with any two ops.

The same model runs with ``portakernel.ops`` and with plain torch; only ``rms_norm`` and ``add`` differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

WIDTH = 64
HIDDEN = 4 * WIDTH
LEARNING_RATE = 0.5
SYMBOLS = 256  # a byte's values
EPS = 1e-6


@dataclass(frozen=True, slots=True)
class Ops:
    """The two ops that the block is about."""

    rms_norm: Callable[[Tensor, Tensor], Tensor]
    add: Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run computed: logits without gradients, then loss and gradients, then the parameters after one step."""

    logits: Tensor
    loss: Tensor
    loss_after: Tensor
    gradients: Mapping[str, Tensor]
    parameters: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Difference:
    """How far a tensor is from its twin: the largest deviation over the twin's largest magnitude."""

    what: str
    relative: float


def plain_torch() -> Ops:
    """The ops as torch alone has them."""

    def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, EPS)

    return Ops(rms_norm, torch.add)


def through_portakernel(fault: str | None = None) -> Ops:
    """The ops as ``portakernel.ops`` has them; the one called ``fault`` gets one element of its result wrong by 1 %."""
    from portakernel import ops

    def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
        y: Tensor = ops.rms_norm(x, weight, eps=EPS)
        return _one_wrong(y) if fault == "rms_norm" else y

    def add(x: Tensor, y: Tensor) -> Tensor:
        total: Tensor = ops.add(x, y)
        return _one_wrong(total) if fault == "add" else total

    return Ops(rms_norm, add)


def _one_wrong(tensor: Tensor) -> Tensor:
    factors = torch.ones_like(tensor)
    factors.view(-1)[tensor.detach().abs().argmax()] = 1.01
    return tensor * factors


def initial_parameters(device: str) -> dict[str, Tensor]:
    """The block's weights, the same on every device."""
    generator = torch.Generator().manual_seed(0)

    def normal(rows: int, columns: int, scale: float) -> Tensor:
        return torch.randn(rows, columns, generator=generator) * scale

    made = {
        "embedding": normal(SYMBOLS, WIDTH, 1.0),
        "norm_weight": 1 + normal(1, WIDTH, 0.1)[0],
        "up": normal(HIDDEN, WIDTH, WIDTH**-0.5),
        "down": normal(WIDTH, HIDDEN, HIDDEN**-0.5),
        "final_norm_weight": 1 + normal(1, WIDTH, 0.1)[0],
        "head": normal(SYMBOLS, WIDTH, WIDTH**-0.5),
    }
    return {name: tensor.to(device) for name, tensor in made.items()}


def forward(parameters: Mapping[str, Tensor], symbols: Tensor, ops: Ops) -> Tensor:
    """Logits ``(T, 256)`` for the byte after each of ``symbols (T,)``."""
    x = F.embedding(symbols, parameters["embedding"])
    h = ops.rms_norm(x, parameters["norm_weight"])
    h = F.linear(F.gelu(F.linear(h, parameters["up"])), parameters["down"])
    x = ops.add(x, h)
    return F.linear(ops.rms_norm(x, parameters["final_norm_weight"]), parameters["head"])


def run(data: bytes, device: str, ops: Ops) -> Outcome:
    """A forward pass without gradients, and one step of gradient descent, over ``data``."""
    text = torch.tensor(list(data), device=device)
    symbols, following = text[:-1], text[1:]
    parameters = initial_parameters(device)
    with torch.no_grad():
        logits = forward(parameters, symbols, ops)
    for parameter in parameters.values():
        parameter.requires_grad_()
    loss = F.cross_entropy(forward(parameters, symbols, ops), following)
    found = torch.autograd.grad(loss, list(parameters.values()))
    gradients = dict(zip(parameters, found, strict=True))
    stepped = {name: (tensor - LEARNING_RATE * gradients[name]).detach() for name, tensor in parameters.items()}
    with torch.no_grad():
        loss_after = F.cross_entropy(forward(stepped, symbols, ops), following)
    return Outcome(logits, loss.detach(), loss_after, gradients, stepped)


def tolerance(positions: int) -> float:
    """The relative difference that float32 rounding explains.

    Rounding errors of a sum of ``n`` terms grow like ``sqrt(n)`` units of 2**-24. The longest sums run over the text's
    positions (a weight's gradient) or the hidden width. Two runs both err, and three normalisations and additions stand
    one behind the other: times 8.
    """
    return float(8 * math.sqrt(max(positions, HIDDEN)) * 2.0**-24)


def differences(ours: Outcome, twin: Outcome) -> Iterator[Difference]:
    """How far everything that was computed is from the twin's."""
    yield Difference("logits", _relative(ours.logits, twin.logits))
    yield Difference("loss", _relative(ours.loss, twin.loss))
    for name, gradient in ours.gradients.items():
        yield Difference(f"gradient of {name}", _relative(gradient, twin.gradients[name]))
    for name, parameter in ours.parameters.items():
        yield Difference(f"{name} after the step", _relative(parameter, twin.parameters[name]))


def _relative(ours: Tensor, twin: Tensor) -> float:
    distance = (ours.double() - twin.double()).abs().max().item()
    scale = twin.double().abs().max().item()
    return 0.0 if distance == 0 else distance / scale if scale else math.inf
