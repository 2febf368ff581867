"""What the demo does, with both sets of operators in turn: one step compared number by number, training, writing."""

from __future__ import annotations

import math
import re
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from portakernel_kit.demo import decoder
from portakernel_kit.demo.decoder_ops import Ops, PlainTorch, ThroughPortakernel

WARMUP_STEPS = 20
LEARNING_RATE = 3e-3
COMPARED_STEPS = 10
TEXTS = 64  # written at a time, as an engine does: of one at a time most would be the host's time
PROMPT = 16  # bytes of the text that each is to continue
WRITTEN_BEFORE = 32  # bytes of each text before training
WRITTEN = 80  # ... and after: prompt and all, no further than the positions that were trained

_WORD = re.compile(rb"\b[A-Za-z]")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one set of operators computed, and how fast.

    ``logits``, ``byte_losses`` and ``gradients`` are of the first step, ``losses`` of all; ``likely`` are the
    probabilities ``(texts, bytes, 256)`` that ``texts`` were drawn from.
    """

    logits: Tensor
    byte_losses: Tensor
    gradients: Mapping[str, Tensor]
    losses: tuple[float, ...]
    texts: tuple[bytes, ...]
    likely: Tensor
    training_tokens_per_s: float
    writing_tokens_per_s: float


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


class Side:
    """A model that learns and writes with one set of operators, and the seconds of each step."""

    def __init__(self, ops: Ops, device: str, first: tuple[Tensor, Tensor]) -> None:
        self.ops, self.device = ops, device
        self.parameters = decoder.initial_parameters(device)
        self.logits, self.byte_losses, self.gradients = decoder.gradients(self.parameters, first, ops)
        for parameter in self.parameters.values():
            parameter.requires_grad_()
        self._optimizer = torch.optim.AdamW(
            list(self.parameters.values()), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.01, fused=True
        )
        self.losses: list[Tensor] = []
        self._training_s: list[float] = []
        self._writing_s: list[float] = []
        self._tokens = 0

    def train(self, batch: tuple[Tensor, Tensor], rate: float) -> None:
        """A step of gradient descent."""
        start = _now(self.device)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        logits, _ = decoder.forward(self.parameters, batch[0], self.ops)
        loss = decoder.losses_of(logits, batch[1], self.ops).mean()
        torch.autograd.backward(loss)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._training_s.append(_now(self.device) - start)
        self._tokens = batch[0].numel()
        self.losses.append(loss.detach())

    def write(self, writer: decoder.Writer) -> None:
        """One more byte of each text."""
        start = _now(self.device)
        writer()
        self._writing_s.append(_now(self.device) - start)

    def outcome(self, writer: decoder.Writer) -> Outcome:
        """What came of it; speeds by the median step, which other work on the machine disturbs least."""
        return Outcome(
            self.logits,
            self.byte_losses,
            self.gradients,
            tuple(loss.item() for loss in self.losses),
            writer.texts,
            torch.stack(writer.likely, 1),
            self._tokens / statistics.median(self._training_s),
            TEXTS / statistics.median(self._writing_s),
        )


class Trial:
    """The same model twice, through portakernel and in plain torch, which take turns at every step and every byte."""

    def __init__(self, data: bytes, device: str, fault: str | None, steps: int) -> None:
        self.data, self.device, self.steps = data, device, steps
        self.prompts = prompts(data)
        self.batches = decoder.batches(data, steps + 1, device)
        self.ours = Side(ThroughPortakernel(fault), device, self.batches[0])
        self.twin = Side(PlainTorch(), device, self.batches[0])

    def train(self) -> Iterator[int]:
        """Trains both, and gives the number of each step that is done."""
        for step, batch in enumerate(self.batches[: self.steps]):
            rate = _learning_rate(step, self.steps)
            for side in self._turns(step):
                side.train(batch, rate)
            yield step + 1

    def write(self, count: int = WRITTEN) -> tuple[decoder.Writer, decoder.Writer]:
        """What both write with the weights that portakernel trained, so that each byte's probabilities compare."""
        ours, twin = (
            decoder.Writer(self.ours.parameters, self.prompts, count, self.device, side.ops)
            for side in (self.ours, self.twin)
        )
        for turn in range(count):
            for side in self._turns(turn):
                side.write(ours if side is self.ours else twin)
        return ours, twin

    def _turns(self, turn: int) -> tuple[Side, Side]:
        return (self.ours, self.twin) if turn % 2 else (self.twin, self.ours)

    def outcomes(self) -> tuple[Outcome, Outcome]:
        """What both computed, once they have written with what was learned."""
        ours, twin = self.write()
        return self.ours.outcome(ours), self.twin.outcome(twin)

    def quantise(self) -> Quantised:
        """The loss on a batch that was not trained on, and how often the most likely byte is the same."""
        ops, (symbols, following) = ThroughPortakernel(), self.batches[-1]
        with torch.no_grad():
            exact, _ = decoder.forward(self.ours.parameters, symbols, ops)
            linear = decoder.quantised_linear(self.ours.parameters)
            quantised, _ = decoder.forward(self.ours.parameters, symbols, ops, linear=linear)
            same = (exact.argmax(-1) == quantised.argmax(-1)).float().mean().item()
            losses = [decoder.losses_of(logits, following, ops).mean().item() for logits in (quantised, exact)]
        return Quantised(losses[0], losses[1], same)


def differences(ours: Outcome, twin: Outcome, positions: int) -> Iterator[Difference]:
    """How far what was computed is from the twin's, wherever both began from the same numbers."""
    once = rounding(positions)
    yield Difference("logits", _relative(ours.logits, twin.logits), once)
    yield Difference("loss of each byte", _relative(ours.byte_losses, twin.byte_losses), once)
    for name, gradient in ours.gradients.items():
        yield Difference(f"gradient of {name}", _relative(gradient, twin.gradients[name]), once)
    # each step starts from parameters that differ by the roundings before it, and steps add up
    steps = min(COMPARED_STEPS, len(ours.losses))
    first = max(abs(a - b) / abs(b) for a, b in zip(ours.losses[:steps], twin.losses[:steps], strict=True))
    yield Difference(f"losses of the first {steps} steps", first, once * steps)
    # where two draws differ, what follows has no twin
    alike = [(i, slice(1 + _in_common(*pair))) for i, pair in enumerate(zip(ours.texts, twin.texts, strict=True))]
    own, others = (torch.cat([side.likely[place] for place in alike]) for side in (ours, twin))
    yield Difference("probabilities while writing", _relative(own, others), once)


def prompts(data: bytes) -> list[bytes]:
    """Where to write on from: places all over the text, which goes round, each where a word begins if one follows."""
    found = []
    for text in range(TEXTS):
        place = len(data) * text // TEXTS
        word = _WORD.search(data, place)
        start = word.start() if word else place
        found.append(bytes(data[(start + i) % len(data)] for i in range(PROMPT)))
    return found


def rounding(positions: int) -> float:
    """The relative difference that float32 rounding explains.

    Rounding errors of a sum of ``n`` terms grow like ``sqrt(n)`` units of 2**-24. The longest sums run over the text's
    positions (a weight's gradient) or the hidden width. Two runs both err, and some ten operators stand one behind the
    other: times 24.
    """
    return float(24 * math.sqrt(max(positions, decoder.HIDDEN)) * 2.0**-24)


def _learning_rate(step: int, steps: int) -> float:
    """A short rise, then a fall along a cosine to a tenth."""
    rise = min(1.0, (step + 1) / WARMUP_STEPS)
    return LEARNING_RATE * rise * (0.55 + 0.45 * math.cos(math.pi * step / steps))


def _in_common(ours: bytes, twin: bytes) -> int:
    """With how many equal bytes both begin."""
    return next((i for i, (a, b) in enumerate(zip(ours, twin, strict=True)) if a != b), len(ours))


def _relative(ours: Tensor, twin: Tensor) -> float:
    distance = (ours.double() - twin.double()).abs().max().item()
    scale = twin.double().abs().max().item()
    return 0.0 if distance == 0 else distance / scale if scale else math.inf


def _now(device: str) -> float:
    """Seconds, when all that was asked of the device is done."""
    if not device.startswith("cpu"):
        torch.get_device_module(device).synchronize(device)
    return time.perf_counter()
