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

from portakernel.cli.decoder_ops import Ops

SYMBOLS = 256  # a byte's values
LAYERS = 2
WIDTH = 128
HEADS = 4
GROUPS = 2  # key and value heads
HEAD_WIDTH = WIDTH // HEADS
HIDDEN = 256
CONTEXT = 128  # bytes in a sequence
BATCH = 4
LEARNING_RATE = 0.2
EPS = 1e-6

Parameters = Mapping[str, Tensor]


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


def rotations(positions: int, device: str) -> tuple[Tensor, Tensor]:
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
) -> tuple[Tensor, list[Cache]]:
    """Logits ``(B, S, 256)`` for the byte after each of ``symbols (B, S)``; keys and values with those of ``cached``.

    ``linear`` applies the weight matrix of a name, where it is not the plain one.
    """

    def plain(x: Tensor, name: str) -> Tensor:
        return ops.linear(x, parameters[name])

    apply = plain if linear is None else linear
    batch, length = symbols.shape
    before = cached[0].keys.shape[1] if cached is not None else 0
    cos, sin = (table[before:] for table in rotations(before + length, str(symbols.device)))
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


def loss_of(logits: Tensor, following: Tensor, ops: Ops) -> Tensor:
    """The mean cross entropy in nats for a byte."""
    return ops.cross_entropy(logits, following).mean()


def batches(data: bytes, steps: int, device: str) -> list[tuple[Tensor, Tensor]]:
    """For each step sequences of the text ``(B, S)``, and the bytes that follow theirs."""
    text = torch.tensor(list(data))
    context = min(CONTEXT, len(data) - 1)
    generator = torch.Generator().manual_seed(1)
    made = []
    for _ in range(steps):
        starts = torch.randint(len(data) - context, (BATCH, 1), generator=generator)
        places = starts + torch.arange(context)
        made.append((text[places].to(device), text[places + 1].to(device)))
    return made


def gradients(
    parameters: Parameters, batch: tuple[Tensor, Tensor], ops: Ops
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Logits, loss, and the loss's gradient for every parameter."""
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in parameters.items()}
    logits, _ = forward(leaves, batch[0], ops)
    loss = loss_of(logits, batch[1], ops)
    found = torch.autograd.grad(loss, list(leaves.values()))
    return logits.detach(), loss.detach(), dict(zip(leaves, found, strict=True))


def generate(parameters: Parameters, prompt: bytes, count: int, device: str, ops: Ops) -> bytes:
    """``count`` bytes that follow ``prompt``, drawn from the model's distribution; equal draws for every ``ops``."""
    generator = torch.Generator().manual_seed(2)
    symbols = torch.tensor([list(prompt)], device=device)
    made: list[int] = []
    caches: list[Cache] | None = None
    with torch.no_grad():
        for _ in range(count):
            logits, caches = forward(parameters, symbols, ops, caches)
            likely = ops.softmax(logits[:, -1].contiguous())[0].cpu()
            drawn = torch.searchsorted(likely.cumsum(0), torch.rand(1, generator=generator) * likely.sum())
            made.append(min(int(drawn), SYMBOLS - 1))
            symbols = torch.tensor([[made[-1]]], device=device)
    return bytes(made)


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
