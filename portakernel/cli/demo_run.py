"""What the demo does: one step compared number by number, some steps of training, text; with both sets of operators."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from portakernel.cli import decoder
from portakernel.cli.decoder_ops import Ops, PlainTorch, ThroughPortakernel

STEPS = 10
GENERATED = 32
PROMPT = 16


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one set of operators computed, and how fast.

    ``logits``, ``loss`` and ``gradients`` are of the first step, ``losses`` of all, ``held_out`` is the loss after
    training on text that was left out.
    """

    logits: Tensor
    loss: Tensor
    gradients: Mapping[str, Tensor]
    losses: tuple[float, ...]
    held_out: float
    text: bytes
    training_tokens_per_s: float
    generation_tokens_per_s: float
    parameters: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Difference:
    """How far a tensor is from its twin: the largest deviation over the twin's largest magnitude."""

    what: str
    relative: float
    tolerance: float

    @property
    def within(self) -> bool:
        """Whether rounding explains it; a NaN is never within."""
        return self.relative <= self.tolerance


@dataclass(frozen=True, slots=True)
class Quantised:
    """The trained model with its linear layers in FP8, beside itself in float32."""

    loss: float
    exact_loss: float
    same_choice: float


def train(data: bytes, device: str, ops: Ops) -> Outcome:
    """Gradient descent over the text, then text of the model's own."""
    batches = decoder.batches(data, STEPS + 1, device)
    parameters = decoder.initial_parameters(device)
    # the first call of each kind decides, compiles and allocates: not what a step costs
    logits, loss, gradients = decoder.gradients(parameters, batches[0], ops)
    losses, tokens, start = list[Tensor](), 0, _now(device)
    for batch in batches[:STEPS]:
        _, step_loss, step = decoder.gradients(parameters, batch, ops)
        parameters = {n: tensor - decoder.LEARNING_RATE * step[n] for n, tensor in parameters.items()}
        losses.append(step_loss)
        tokens += batch[0].numel()
    training = tokens / (_now(device) - start)
    prompt = data[:PROMPT]
    decoder.generate(parameters, prompt, 2, device, ops)
    start = _now(device)
    text = decoder.generate(parameters, prompt, GENERATED, device, ops)
    generation = GENERATED / (_now(device) - start)
    with torch.no_grad():
        held_out = decoder.loss_of(decoder.forward(parameters, batches[-1][0], ops)[0], batches[-1][1], ops).item()
    history = tuple(step_loss.item() for step_loss in losses)
    return Outcome(logits, loss, gradients, history, held_out, text, training, generation, parameters)


def run(data: bytes, device: str, fault: str | None) -> tuple[Outcome, Outcome]:
    """Through portakernel, and in plain torch."""
    return train(data, device, ThroughPortakernel(fault)), train(data, device, PlainTorch())


def quantise(data: bytes, device: str, trained: Outcome) -> Quantised:
    """The loss on text that was not trained on, and how often the most likely byte is the same."""
    ops, (symbols, following) = ThroughPortakernel(), decoder.batches(data, STEPS + 1, device)[-1]
    with torch.no_grad():
        exact, _ = decoder.forward(trained.parameters, symbols, ops)
        linear = decoder.quantised_linear(trained.parameters)
        quantised, _ = decoder.forward(trained.parameters, symbols, ops, linear=linear)
        same = (exact.argmax(-1) == quantised.argmax(-1)).float().mean().item()
        losses = [decoder.loss_of(logits, following, ops).item() for logits in (quantised, exact)]
    return Quantised(losses[0], losses[1], same)


def differences(ours: Outcome, twin: Outcome, positions: int) -> Iterator[Difference]:
    """How far what was computed is from the twin's."""
    once = rounding(positions)
    yield Difference("logits", _relative(ours.logits, twin.logits), once)
    yield Difference("loss", _relative(ours.loss, twin.loss), once)
    for name, gradient in ours.gradients.items():
        yield Difference(f"gradient of {name}", _relative(gradient, twin.gradients[name]), once)
    # each step starts from parameters that differ by the roundings before it, and steps add up
    yield Difference("losses while training", _apart(ours.losses, twin.losses), once * STEPS)


def rounding(positions: int) -> float:
    """The relative difference that float32 rounding explains.

    Rounding errors of a sum of ``n`` terms grow like ``sqrt(n)`` units of 2**-24. The longest sums run over the text's
    positions (a weight's gradient) or the hidden width. Two runs both err, and some ten operators stand one behind the
    other: times 24.
    """
    return float(24 * math.sqrt(max(positions, decoder.HIDDEN)) * 2.0**-24)


def _apart(ours: Sequence[float], twin: Sequence[float]) -> float:
    return max(abs(a - b) / abs(b) for a, b in zip(ours, twin, strict=True))


def _relative(ours: Tensor, twin: Tensor) -> float:
    distance = (ours.double() - twin.double()).abs().max().item()
    scale = twin.double().abs().max().item()
    return 0.0 if distance == 0 else distance / scale if scale else math.inf


def _now(device: str) -> float:
    """Seconds, when all that was asked of the device is done."""
    if not device.startswith("cpu"):
        torch.get_device_module(device).synchronize(device)
    return time.perf_counter()
