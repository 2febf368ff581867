"""``moe_mlp`` and its gradient: one expert after the other, and each token's results in the order of its experts.

With ``gate, up`` the halves of ``z = x @ w_in[e].T``, ``h = activation(gate) * up``, ``w`` the weight and ``g`` the
gradient of y for a token of expert e:

    grad_weights    = h . (g @ w_out[e]) + g . bias_out[e]
    grad_gate       = w * (g @ w_out[e]) * up * activation'(gate)
    grad_up         = w * (g @ w_out[e]) * activation(gate)
    grad_w_out[e]   = sum of (w * g).T @ h         grad_bias_out[e] = sum of w * g
    grad_w_in[e]    = sum of grad_z.T @ x          grad_bias_in[e]  = sum of grad_z
    grad_x          = sum of grad_z @ w_in[e]

Narrow arguments stand for themselves times their scales; gated rows are quantised by ``plain`` alone. Finding the
tokens of an expert waits for the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from portakernel.errors import ArgumentValueError, DerivativeError
from portakernel.references import quantize_fp8
from portakernel.references.moe_gates import gated, plainly_gated, slopes
from portakernel.references.scale_formats import numbers, spread
from portakernel.tensors.index_values import check_indices

Activation = Literal["silu", "gelu", "gelu_tanh", "swiglu_oai"]
Halves = Literal["concat", "interleaved"]
Format = Literal["none", "row", "block", "mxfp4"]
# How rows, and matrices, are quantised.
_SHARED = {"row": ("row", "row"), "block": ("block_1x128", "block_128x128"), "mxfp4": ("", "mxfp4")}
# Where rows are.
_NARROW = ("row", "block")


def check_scales(format: Format, **scales: Tensor | None) -> None:
    """Nothing, when there are scales where the format has them.

    Raises:
        ArgumentValueError: one is missing, or there is one too many.
    """
    for name, scale in scales.items():
        if (scale is None) != (format not in _NARROW if name == "scale_x" else format == "none"):
            needed = "it must be given" if scale is None else "it must be left out"
            found = "None" if scale is None else "a tensor"
            raise ArgumentValueError(f"moe_mlp: {name} is {found} with format={format!r}; {needed}")


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype is torch.float64 else tensor.float()


def _decoded(q: Tensor, scale: Tensor | None, shared: str, dtype: torch.dtype) -> Tensor:
    """``q`` times its ``scale``, in ``dtype``."""
    x = numbers(q, torch.float32).to(dtype) if q.dtype.itemsize == 1 else q.to(dtype)
    return x if scale is None else x * spread(numbers(scale, dtype), shared, x.shape)


@dataclass(frozen=True)
class _Layers:
    """The arguments of a call, decoded in ``dtype`` as far as they are asked for."""

    x: Tensor
    w_in: Tensor
    w_out: Tensor
    scale_x: Tensor | None
    scale_in: Tensor | None
    scale_out: Tensor | None
    bias_in: Tensor | None
    bias_out: Tensor | None
    format: Format
    dtype: torch.dtype

    def rows(self, tokens: Tensor) -> Tensor:
        """The rows of some tokens."""
        x = self.x.view(torch.uint8)[tokens].view(self.x.dtype) if self.x.dtype.itemsize == 1 else self.x[tokens]
        scale = None if self.scale_x is None else self.scale_x[tokens]
        return _decoded(x, scale, _SHARED.get(self.format, ("", ""))[0], self.dtype)

    def first(self, e: int) -> Tensor:
        """An expert's ``w_in``."""
        return self._matrix(self.w_in, self.scale_in, e)

    def second(self, e: int) -> Tensor:
        """An expert's ``w_out``."""
        return self._matrix(self.w_out, self.scale_out, e)

    def biases(self, e: int) -> tuple[Tensor | None, Tensor | None]:
        """What is added to an expert's two products."""
        first, second = (None if bias is None else bias[e].to(self.dtype) for bias in (self.bias_in, self.bias_out))
        return first, second

    def _matrix(self, w: Tensor, scale: Tensor | None, e: int) -> Tensor:
        return _decoded(w[e], None if scale is None else scale[e], _SHARED.get(self.format, ("", ""))[1], self.dtype)


def _plus(product: Tensor, bias: Tensor | None) -> Tensor:
    return product if bias is None else product + bias


def _split(z: Tensor, halves: Halves) -> tuple[Tensor, Tensor]:
    """Gate and up of rows ``z: (R, 2I)``."""
    if halves == "interleaved":
        return z[:, 0::2], z[:, 1::2]
    middle = z.shape[1] // 2
    return z[:, :middle], z[:, middle:]


def _joined(gate: Tensor, up: Tensor, halves: Halves) -> Tensor:
    if halves == "interleaved":
        return torch.stack((gate, up), -1).flatten(1)
    return torch.cat((gate, up), 1)


def _assigned(experts: Tensor, count: int) -> Iterator[tuple[int, Tensor]]:
    """Each expert that has some of the assignments, and which."""
    flat = experts.reshape(-1)
    if flat.device.type == "cpu":
        here = flat[flat != -1]
        check_indices("moe_mlp", "experts", here, count, "E")
    found: list[int] = torch.unique(flat).tolist()
    for e in found:
        if 0 <= e < count:
            yield e, (flat == e).nonzero().flatten()


def _added(rows: Tensor, shape: torch.Size, weights: Tensor | None = None) -> Tensor:
    """The sums of each token's ``rows: (T * K, H)``, in the order of its experts, in ``rows``' dtype."""
    tokens, choices = shape
    rows = rows.reshape(tokens, choices, rows.shape[1])
    total = torch.zeros_like(rows[:, 0]) if choices else rows.new_zeros((tokens, rows.shape[2]))
    for j in range(choices):
        total = total + (rows[:, j] if weights is None else rows[:, j] * weights[:, j, None])
    return total


def _here(weights: Tensor, experts: Tensor) -> Tensor:
    """Weights, 0 of experts that are elsewhere."""
    return weights.masked_fill(experts < 0, 0)


def _results(layers: _Layers, weights: Tensor, experts: Tensor, activation: Activation, halves: Halves) -> Tensor:
    """``y``, in the dtype in which ``layers`` are decoded."""
    choices = experts.shape[1]
    results = torch.zeros((experts.numel(), layers.x.shape[1]), dtype=layers.dtype, device=layers.x.device)
    for e, places in _assigned(experts, layers.w_in.shape[0]):
        before, behind = layers.biases(e)
        gate, up = _split(_plus(layers.rows(places // choices) @ layers.first(e).T, before), halves)
        results[places] = _plus(gated(gate, up, activation) @ layers.second(e).T, behind)
    return _added(results, experts.shape, _here(weights.to(layers.dtype), experts))


def forward(
    x: Tensor,
    w_in: Tensor,
    w_out: Tensor,
    weights: Tensor,
    experts: Tensor,
    *,
    scale_x: Tensor | None = None,
    scale_in: Tensor | None = None,
    scale_out: Tensor | None = None,
    bias_in: Tensor | None = None,
    bias_out: Tensor | None = None,
    activation: Activation = "silu",
    halves: Halves = "concat",
    format: Format = "none",
    out: Tensor | None = None,
) -> Tensor:
    """``y: (T, H)``, rounded once.

    Raises:
        ArgumentValueError: scales are not given as ``format`` says.
        IndexOutOfRangeError: there is no such expert (on the CPU).
    """
    check_scales(format, scale_x=scale_x, scale_in=scale_in, scale_out=scale_out)
    dtype = torch.float64 if x.dtype is torch.float64 else torch.float32
    layers = _Layers(x, w_in, w_out, scale_x, scale_in, scale_out, bias_in, bias_out, format, dtype)
    y = _results(layers, weights, experts, activation, halves)
    y = y.to(torch.bfloat16 if format in _NARROW else x.dtype)
    return y if out is None else out.copy_(y)


def backward(
    grad_y: Tensor,
    x: Tensor,
    w_in: Tensor,
    w_out: Tensor,
    weights: Tensor,
    experts: Tensor,
    bias_in: Tensor | None = None,
    bias_out: Tensor | None = None,
    *,
    activation: Activation = "silu",
    halves: Halves = "concat",
    format: Format = "none",
    needs: tuple[bool, ...] = (True, True, True, True, False, False, False, False, True, True),
) -> tuple[Tensor | None, ...]:
    """Gradients for ``x``, ``w_in``, ``w_out``, ``weights`` and biases from that of ``y``, each rounded once.

    Raises:
        DerivativeError: ``format`` is another than "none".
    """
    if format != "none":
        raise DerivativeError(f"moe_mlp: format is {format!r}; gradients are those of format='none'")
    choices = experts.shape[1]
    grad_rows = _wide(x).new_zeros((experts.numel(), x.shape[1])) if needs[0] else None
    grad_in = w_in.new_zeros(w_in.shape) if needs[1] else None
    grad_out = w_out.new_zeros(w_out.shape) if needs[2] else None
    grad_weights = weights.new_zeros(experts.numel()) if needs[3] else None
    grad_before = bias_in.new_zeros(bias_in.shape) if bias_in is not None and needs[8] else None
    grad_behind = bias_out.new_zeros(bias_out.shape) if bias_out is not None and needs[9] else None
    for e, places in _assigned(experts, w_in.shape[0]):
        tokens = places // choices
        rows, g, w = _wide(x[tokens]), _wide(grad_y[tokens]), _wide(weights).reshape(-1)[places].unsqueeze(1)
        before = None if bias_in is None else bias_in[e].to(rows.dtype)
        gate, up = _split(_plus(rows @ _wide(w_in[e]).T, before), halves)
        h, u = gated(gate, up, activation), g @ _wide(w_out[e])
        of_gate, of_up = slopes(gate, up, activation)
        grad_z = _joined(w * u * of_gate, w * u * of_up, halves)
        if grad_rows is not None:
            grad_rows[places] = grad_z @ _wide(w_in[e])
        if grad_in is not None:
            grad_in[e] = (grad_z.T @ rows).to(w_in.dtype)
        if grad_out is not None:
            grad_out[e] = ((w * g).T @ h).to(w_out.dtype)
        if grad_weights is not None:
            of_bias = 0 if bias_out is None else g @ bias_out[e].to(g.dtype)
            grad_weights[places] = ((h * u).sum(1) + of_bias).to(weights.dtype)
        if grad_before is not None:
            grad_before[e] = grad_z.sum(0).to(grad_before.dtype)
        if grad_behind is not None:
            grad_behind[e] = (w * g).sum(0).to(grad_behind.dtype)
    grad_x = None if grad_rows is None else _added(grad_rows, experts.shape).to(x.dtype)
    of_weights = None if grad_weights is None else grad_weights.reshape(experts.shape)
    return grad_x, grad_in, grad_out, of_weights, None, None, None, None, grad_before, grad_behind


def plain(
    x: Tensor,
    w_in: Tensor,
    w_out: Tensor,
    weights: Tensor,
    experts: Tensor,
    *,
    scale_x: Tensor | None = None,
    scale_in: Tensor | None = None,
    scale_out: Tensor | None = None,
    bias_in: Tensor | None = None,
    bias_out: Tensor | None = None,
    activation: Activation = "silu",
    halves: Halves = "concat",
    format: Format = "none",
) -> Tensor:
    """Two linear layers for each expert, the gate between them and the weighted sum, each in the inputs' own dtype.

    Narrow layers are decoded to bfloat16, or to x's dtype where x is not; what is gated is quantised as x is.
    """
    linear, choices = torch.nn.functional.linear, experts.shape[1]
    dtype = torch.bfloat16 if format in _NARROW else x.dtype
    layers = _Layers(x, w_in, w_out, scale_x, scale_in, scale_out, bias_in, bias_out, format, dtype)
    rows = torch.zeros((experts.numel(), x.shape[1]), dtype=dtype, device=x.device)
    results, found = [rows[:0]], [experts.new_zeros(0, dtype=torch.int64)]
    for e, places in _assigned(experts, w_in.shape[0]):
        before, behind = layers.biases(e)
        gate, up = _split(linear(layers.rows(places // choices), layers.first(e), before), halves)
        h = plainly_gated(gate, up, activation)
        if format in _NARROW and h.numel():
            by = _SHARED[format][0]
            q, scale = quantize_fp8.forward(h, granularity=by, dtype=str(x.dtype).removeprefix("torch."))
            h = _decoded(q, scale, by, dtype)
        results.append(linear(h, layers.second(e), behind))
        found.append(places)
    rows = rows.index_copy(0, torch.cat(found), torch.cat(results))
    y = _added(rows, experts.shape, _here(weights, experts).to(dtype))
    if format == "none":  # what no expert has has gradients too
        absent = (x, w_in, w_out, weights, bias_in, bias_out)
        y = y + 0 * sum(tensor[:0].sum().to(dtype) for tensor in absent if tensor is not None)
    return y


def truth(
    x: Tensor,
    w_in: Tensor,
    w_out: Tensor,
    weights: Tensor,
    experts: Tensor,
    *,
    scale_x: Tensor | None = None,
    scale_in: Tensor | None = None,
    scale_out: Tensor | None = None,
    bias_in: Tensor | None = None,
    bias_out: Tensor | None = None,
    activation: Activation = "silu",
    halves: Halves = "concat",
    format: Format = "none",
) -> tuple[Tensor]:
    """``y`` in float64, of gated rows that are not quantised."""
    check_scales(format, scale_x=scale_x, scale_in=scale_in, scale_out=scale_out)
    layers = _Layers(x, w_in, w_out, scale_x, scale_in, scale_out, bias_in, bias_out, format, torch.float64)
    return (_results(layers, weights, experts, activation, halves),)
