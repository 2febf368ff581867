"""``RMSNorm`` and ``LayerNorm``: torch's own modules, computed by the ops ``rms_norm`` and ``layer_norm``."""

from __future__ import annotations

import torch
from torch import Tensor

from portakernel import ops
from portakernel.errors import ArgumentValueError


class RMSNorm(torch.nn.RMSNorm):
    """``x * rsqrt(mean(x**2) + eps) * weight`` over the last dimensions, by the op ``rms_norm``.

    It is a ``torch.nn.RMSNorm``: constructor, defaults, weights and repr are that class's. x: (*, *normalized_shape) in
    float32, float16 or bfloat16, or float64, which the reference serves; the weight in x's dtype or float32. The result
    has x's dtype. The op computes in float32 and rounds once, at the end.

    Raises:
        ArgumentValueError: x does not end in ``normalized_shape``.
        ArgumentTypeError: x or the weight has a dtype that the op does not take.
    """

    def forward(self, x: Tensor) -> Tensor:
        """The normalised ``x``, of its shape and dtype."""
        eps = rms_norm_eps(self.eps, x)
        weight: Tensor | None = self.weight
        if weight is not None and len(self.normalized_shape) == 1:
            return ops.rms_norm(x, weight, eps=eps)
        rows = as_rows(x, self.normalized_shape)
        return ops.rms_norm(rows, as_row(weight, rows), eps=eps).reshape(x.shape)


class LayerNorm(torch.nn.LayerNorm):
    """``(x - mean(x)) * rsqrt(var(x) + eps) * weight + bias`` over the last dimensions, by the op ``layer_norm``.

    It is a ``torch.nn.LayerNorm``: constructor, defaults, weights and repr are that class's. x: (*, *normalized_shape)
    in float32, float16 or bfloat16, or float64, which the reference serves; weight and bias in x's dtype or float32.
    The result has x's dtype. The op computes in float32 and rounds once, at the end.

    Raises:
        ArgumentValueError: x does not end in ``normalized_shape``.
        ArgumentTypeError: x, the weight or the bias has a dtype that the op does not take.
    """

    def forward(self, input: Tensor) -> Tensor:
        """The normalised ``input``, of its shape and dtype."""
        weight: Tensor | None = self.weight
        bias: Tensor | None = self.bias
        if weight is not None and len(self.normalized_shape) == 1:
            return ops.layer_norm(input, weight, bias, eps=self.eps)
        rows = as_rows(input, self.normalized_shape)
        flat = None if bias is None else bias.flatten()
        return ops.layer_norm(rows, as_row(weight, rows), flat, eps=self.eps).reshape(input.shape)


def rms_norm_eps(eps: float | None, x: Tensor) -> float:
    """What ``torch.nn.RMSNorm`` adds for ``eps``: for None the epsilon of the dtype that it computes in.

    torch's page names x's own dtype; its kernels compute 16-bit numbers in float32 and take that one's (torch 2.13).
    """
    if eps is not None:
        return eps
    return torch.finfo(torch.float64 if x.dtype == torch.float64 else torch.float32).eps


def as_rows(x: Tensor, normalized_shape: tuple[int, ...]) -> Tensor:
    """``x`` with its last dimensions, which are ``normalized_shape``, as one.

    Raises:
        ArgumentValueError: they are not.
    """
    dims = len(normalized_shape)
    if tuple(x.shape[-dims:]) != normalized_shape:
        raise ArgumentValueError(
            f"x is {tuple(x.shape)}; the module normalises {normalized_shape}: give a tensor whose last"
            f" {'dimension is that' if dims == 1 else f'{dims} dimensions are these'}"
        )
    return x if dims == 1 else x.flatten(-dims)


def as_row(weight: Tensor | None, rows: Tensor) -> Tensor:
    """``weight`` with one dimension; ones where a module has none (``elementwise_affine=False``)."""
    # made for each call: a buffer would hold anything after to_empty(), because no state_dict has it
    return rows.new_ones(rows.shape[-1]) if weight is None else weight.flatten()
