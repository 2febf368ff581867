"""The models of ``model_steps.py``, each written once over a set of operators: plain torch's, and portakernel's.

Sizes are those of production on a GPU, and small ones on a CPU, where numbers are compared and little is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from portakernel import ops
from portakernel_kit.demo import decoder
from portakernel_kit.demo.decoder_ops import PlainTorch, ThroughPortakernel

EPS = 1e-6
# A model: its operators in, a function of tensors out that returns what is compared, and differentiated.
Model = Callable[[Any], Callable[..., Tensor]]


@dataclass(frozen=True)
class Subject:
    """A model with its inputs; ``trained`` are those that gradients are taken of, the parameters."""

    name: str
    model: Model
    inputs: tuple[Tensor, ...]
    trained: tuple[Tensor, ...]


def _by_head(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    heads = (tensor.transpose(1, 2) for tensor in (q, k, v))
    return F.scaled_dot_product_attention(*heads, is_causal=causal).transpose(1, 2)


PLAIN = SimpleNamespace(
    rms_norm=lambda x, w: F.rms_norm(x, w.shape, w, EPS),
    layer_norm=lambda x, w, b: F.layer_norm(x, w.shape, w, b, EPS),
    softmax=lambda x: torch.softmax(x, -1),
    add=lambda x, y: x + y,
    silu_and_mul=lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1],
    gelu=lambda x, w, b: F.gelu(F.linear(x, w, b), approximate="tanh"),
    attention=_by_head,
    bags=lambda w, i, o: F.embedding_bag(i, w, o, mode="sum"),
)
OURS = SimpleNamespace(
    rms_norm=lambda x, w: ops.rms_norm(x, w, eps=EPS),
    layer_norm=lambda x, w, b: ops.layer_norm(x, w, b, eps=EPS),
    softmax=ops.softmax,
    add=ops.add,
    silu_and_mul=ops.silu_and_mul,
    gelu=lambda x, w, b: ops.linear_act(x, w, b, activation="gelu_tanh"),
    attention=lambda q, k, v, causal: ops.attention(q, k, v, causal=causal),
    bags=lambda w, i, o: ops.embedding_bag(w, i, o, mode="sum"),
)


def _drawn(device: str, *shape: int, scale: float = 1.0) -> Tensor:
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    return (torch.randn(shape, device=device) * scale).to(dtype)


def mlp_block(device: str, tokens: int) -> Subject:
    """Norm, gated MLP and residual, of Llama 8B's width."""
    width, inner = (4096, 14336) if device != "cpu" else (64, 224)
    norm, up, down = (_drawn(device, *shape, scale=0.02) for shape in ((width,), (2 * inner, width), (width, inner)))

    def model(by: Any) -> Callable[..., Tensor]:
        def block(x: Tensor, norm: Tensor, up: Tensor, down: Tensor) -> Tensor:
            h = by.silu_and_mul(F.linear(by.rms_norm(x, norm), up))
            result: Tensor = by.add(x, F.linear(h, down))
            return result

        return block

    return Subject(
        f"MLP block {width}/{inner}, {tokens} tokens", model, (_drawn(device, tokens, width),), (norm, up, down)
    )


def diffusion_block(device: str) -> Subject:
    """Norm, attention of every token with every token, norm and MLP with GELU, as in diffusion transformers."""
    batch, tokens, heads, width = (4, 1024, 16, 1024) if device != "cpu" else (2, 32, 2, 32)
    shapes = ((width,), (width,), (3 * width, width), (width, width), (width,), (width,))
    parameters = [_drawn(device, *shape, scale=0.05) for shape in shapes]
    parameters += [
        _drawn(device, *shape, scale=0.05) for shape in ((4 * width, width), (4 * width,), (width, 4 * width))
    ]

    def model(by: Any) -> Callable[..., Tensor]:
        def block(x: Tensor, *p: Tensor) -> Tensor:
            q, k, v = F.linear(by.layer_norm(x, p[0], p[1]), p[2]).view(batch, tokens, 3, heads, -1).unbind(2)
            mixed = by.attention(q, k, v, False).reshape(batch, tokens, width)
            x = x + F.linear(mixed, p[3])
            return x + F.linear(by.gelu(by.layer_norm(x, p[4], p[5]), p[6], p[7]), p[8])

        return block

    name = f"diffusion block, {batch} × {tokens} tokens of {width}"
    return Subject(name, model, (_drawn(device, batch, tokens, width),), tuple(parameters))


def ranking_model(device: str) -> Subject:
    """Bags of an embedding table, three layers, and a score: what ranks."""
    bags, each, rows, width = (8192, 32, 1_000_000, 128) if device != "cpu" else (64, 4, 100, 16)
    indices = torch.randint(0, rows, (bags * each,), device=device)
    offsets = torch.arange(bags, device=device) * each
    table = _drawn(device, rows, width, scale=0.1)
    layers = [_drawn(device, *shape, scale=0.1) for shape in ((512, width), (512,), (256, 512), (256,), (1, 256))]

    def model(by: Any) -> Callable[..., Tensor]:
        def score(indices: Tensor, offsets: Tensor, table: Tensor, *p: Tensor) -> Tensor:
            h = by.gelu(by.bags(table, indices, offsets), p[0], p[1])
            return F.linear(by.gelu(h, p[2], p[3]), p[4])

        return score

    return Subject(f"ranking, {bags} bags of {each}", model, (indices, offsets), (table, *layers))


def demo_decoder(device: str) -> Subject:
    """The decoder of ``portakernel demo``: its loss."""
    parameters = decoder.initial_parameters(device)
    symbols, following = decoder.batches(bytes(range(256)) * 64, 1, device)[0]
    sides = {id(PLAIN): PlainTorch(), id(OURS): ThroughPortakernel()}

    def model(by: Any) -> Callable[..., Tensor]:
        def loss(symbols: Tensor, following: Tensor, *given: Tensor) -> Tensor:
            named = dict(zip(parameters, given, strict=True))
            side = sides[id(by)]
            return decoder.losses_of(decoder.forward(named, symbols, side)[0], following, side).mean()

        return loss

    return Subject("the demo's decoder", model, (symbols, following), tuple(parameters.values()))


def single_ops(device: str) -> Sequence[Subject]:
    """Ops of a few rows, whose time is the host's."""

    def op(name: str, run: Callable[[Any], Callable[..., Tensor]], *shapes: tuple[int, ...]) -> Subject:
        return Subject(name, run, (), tuple(_drawn(device, *shape) for shape in shapes))

    return (
        op("rms_norm", lambda by: by.rms_norm, (8, 512), (512,)),
        op("layer_norm", lambda by: by.layer_norm, (8, 512), (512,), (512,)),
        op("softmax", lambda by: by.softmax, (8, 512)),
        op("add", lambda by: by.add, (8, 512), (8, 512)),
        op("attention", lambda by: lambda q, k, v: by.attention(q, k, v, True), *([(1, 32, 4, 64)] * 3)),
    )
