"""A byte-level decoder in the shape of Llama: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

The same model runs with ``portakernel.ops`` and with plain torch; only the operators differ (``decoder_ops``).
Source: Touvron et al. 2023, Llama 2, arXiv 2307.09288, 2.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from portakernel_kit.demo.decoder_ops import Ops

SYMBOLS = 256  # a byte's values
LAYERS = 2
WIDTH = 384
HEADS = 6
GROUPS = 2  # key and value heads
HEAD_WIDTH = WIDTH // HEADS
HIDDEN = 1024
CONTEXT = 128  # bytes in a sequence
BATCH = 4
EPS = 1e-6
TEMPERATURE = 0.5  # of what is written

Parameters = Mapping[str, Tensor]
Angles = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Cache:
    """A layer's keys and values so far, ``(1, T, G, D)``."""

    keys: Tensor
    values: Tensor


def initial_parameters(device: str) -> dict[str, Tensor]:
    """The model's weights, float32, the same on every device."""
    generator = torch.Generator().manual_seed(0)

    def normal(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=generator) / math.sqrt(columns)

    made = {"embedding": torch.randn(SYMBOLS, WIDTH, generator=generator)}
    for layer in range(LAYERS):
        made |= {
            f"{layer}.attention_norm": torch.ones(WIDTH),
            f"{layer}.qkv": normal((HEADS + 2 * GROUPS) * HEAD_WIDTH, WIDTH),
            f"{layer}.output": normal(WIDTH, WIDTH),
            f"{layer}.mlp_norm": torch.ones(WIDTH),
            f"{layer}.gate_up": normal(2 * HIDDEN, WIDTH),
            f"{layer}.down": normal(WIDTH, HIDDEN),
        }
    made |= {"final_norm": torch.ones(WIDTH), "head": normal(SYMBOLS, WIDTH)}
    return {name: tensor.to(device) for name, tensor in made.items()}


def rotations(positions: int, device: str) -> Angles:
    """Cosines and sines ``(positions, D/2)`` of the rotary angles, base 10000."""
    exponents = torch.arange(0, HEAD_WIDTH, 2, device=device) / HEAD_WIDTH
    frequencies = torch.full_like(exponents, 10000.0).pow(-exponents)
    angles = torch.arange(positions, device=device).unsqueeze(1) * frequencies
    return angles.cos(), angles.sin()


def forward(
    parameters: Parameters,
    symbols: Tensor,
    ops: Ops,
    cached: Sequence[Cache] | None = None,
    linear: Callable[[Tensor, str], Tensor] | None = None,
    angles: Angles | None = None,
) -> tuple[Tensor, list[Cache]]:
    """Logits ``(B, S, 256)`` for the byte after each of ``symbols (B, S)``; keys and values with those of ``cached``.

    ``linear`` applies the weight matrix of a name, where it is not the plain one. ``angles`` are ``rotations`` for at
    least as many positions, where they were computed before.
    """

    def plain(x: Tensor, name: str) -> Tensor:
        return ops.linear(x, parameters[name])

    apply = plain if linear is None else linear
    batch, length = symbols.shape
    before = cached[0].keys.shape[1] if cached is not None else 0
    tables = rotations(before + length, str(symbols.device)) if angles is None else angles
    cos, sin = (table[before : before + length] for table in tables)
    stream = ops.embedding(parameters["embedding"], symbols)
    caches: list[Cache] = []
    h = ops.rms_norm(stream, parameters["0.attention_norm"], EPS)
    for layer in range(LAYERS):
        heads = apply(h, f"{layer}.qkv").reshape(batch, length, HEADS + 2 * GROUPS, HEAD_WIDTH)
        q, k, v = (part.contiguous() for part in torch.split(heads, [HEADS, GROUPS, GROUPS], dim=-2))
        q, k = ops.rotary(q, k, cos, sin)
        if cached is not None:
            k, v = torch.cat([cached[layer].keys, k], 1), torch.cat([cached[layer].values, v], 1)
        caches.append(Cache(k, v))
        attended = apply(ops.attention(q, k, v).reshape(batch, length, WIDTH), f"{layer}.output")
        h, stream = ops.add_rms_norm(attended, stream, parameters[f"{layer}.mlp_norm"], EPS)
        hidden = apply(ops.silu_and_mul(apply(h, f"{layer}.gate_up")), f"{layer}.down")
        following = "final_norm" if layer == LAYERS - 1 else f"{layer + 1}.attention_norm"
        h, stream = ops.add_rms_norm(hidden, stream, parameters[following], EPS)
    return apply(h, "head"), caches


def losses_of(logits: Tensor, following: Tensor, ops: Ops) -> Tensor:
    """The cross entropy in nats of each byte, flat; its mean is the loss."""
    return ops.cross_entropy(logits, following).flatten()


def batches(data: bytes, steps: int, device: str) -> list[tuple[Tensor, Tensor]]:
    """For each step sequences of the text ``(B, S)``, and the bytes that follow theirs.

    The text goes round, so that its beginning is met as often as its middle.
    """
    text = torch.tensor(list(data))
    context = min(CONTEXT, len(data) - 1)
    generator = torch.Generator().manual_seed(1)
    made = []
    for _ in range(steps):
        starts = torch.randint(len(data), (BATCH, 1), generator=generator)
        places = starts + torch.arange(context)
        made.append((text[places % len(data)].to(device), text[(places + 1) % len(data)].to(device)))
    return made


def gradients(
    parameters: Parameters, batch: tuple[Tensor, Tensor], ops: Ops
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Logits, the loss of each byte, and the mean loss's gradient for every parameter."""
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in parameters.items()}
    logits, _ = forward(leaves, batch[0], ops)
    losses = losses_of(logits, batch[1], ops)
    found = torch.autograd.grad(losses.mean(), list(leaves.values()))
    return logits.detach(), losses.detach(), dict(zip(leaves, found, strict=True))


class Writer:
    """Writes on after prompts of one length: on each call a byte after each, drawn from the model's distribution.

    It draws alike whatever the operators.
    """

    def __init__(self, parameters: Parameters, prompts: Sequence[bytes], length: int, device: str, ops: Ops) -> None:
        self.likely: list[Tensor] = []  # the probabilities ``(B, 256)`` that each column of bytes was drawn from
        self._parameters, self._ops, self._device = parameters, ops, device
        self._symbols = torch.tensor([list(prompt) for prompt in prompts], device=device)
        self._angles = rotations(self._symbols.shape[1] + length, device)
        self._caches: list[Cache] | None = None
        self._draws = torch.rand(length, len(prompts), 1, generator=torch.Generator().manual_seed(2))
        self._drawn: list[Tensor] = []

    @property
    def texts(self) -> tuple[bytes, ...]:
        """What was written so far after each prompt."""
        return tuple(map(bytes, torch.cat(self._drawn, 1).tolist()))

    @torch.no_grad()
    def __call__(self) -> None:
        """Writes a byte after each text."""
        logits, self._caches = forward(self._parameters, self._symbols, self._ops, self._caches, angles=self._angles)
        likely = self._ops.softmax(logits[:, -1] / TEMPERATURE).cpu()
        sums = likely.cumsum(1)
        drawn = torch.searchsorted(sums, self._draws[len(self._drawn)] * sums[:, -1:])
        self._drawn.append(drawn.clamp_(max=SYMBOLS - 1))
        self.likely.append(likely)
        self._symbols = drawn.to(self._device)


def quantised_linear(parameters: Parameters) -> Callable[[Tensor, str], Tensor]:
    """Linear layers in FP8: weights quantised once and activations on each call, a scale for each row of both."""
    from portakernel import ops

    matrices = [name for name, tensor in parameters.items() if tensor.dim() == 2 and name != "embedding"]
    weights = {name: ops.quantize_fp8(parameters[name].detach(), granularity="row") for name in matrices}

    def linear(x: Tensor, name: str) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        q, scale = ops.quantize_fp8(rows, granularity="row")
        weight, weight_scale = weights[name]
        y = ops.scaled_mm(q, weight, scale, weight_scale, format_a="row", format_b="row", out_dtype=torch.bfloat16)
        return y.to(x.dtype).reshape(*x.shape[:-1], -1)

    return linear
