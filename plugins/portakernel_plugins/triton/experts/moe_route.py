"""``moe_route`` and its gradient in Triton, by the kernels of ``moe_route_kernels.py``."""

from __future__ import annotations

import torch
from torch import Tensor

from portakernel.authoring.tensors import contiguous_like, delivered, with_row_stride
from portakernel.authoring.triton import Held, cdiv, grid_of, per_device, prepared
from portakernel_plugins.triton.experts import moe_route_kernels as kernels
from portakernel_plugins.triton.launching.configurations import configuration


def _power(number: int) -> int:
    return 1 << (number - 1).bit_length()


@per_device
def _forward_plan(
    kernel: str,
    device: torch.device,
    experts: int,
    k: int,
    scoring: str,
    normalizes: bool,
    biased: bool,
    groups: int,
    kept: int,
) -> tuple[Held, int]:
    """What is launched for so many ``experts``, and how many rows a program takes."""
    lanes = _power(groups), _power(experts // groups)
    how = configuration(kernel, device, lanes[0] * lanes[1])
    meta = {"K": k, "CHOICES": _power(k), "SCORING": scoring, "NORMALIZES": normalizes, "BIASED": biased}
    meta |= {
        "GROUPS": groups,
        "MEMBERS": experts // groups,
        "KEPT": kept,
        "GROUP_LANES": lanes[0],
        "MEMBER_LANES": lanes[1],
        "ROWS": how.rows,
        **how.options,
    }
    return prepared(kernels.forward, meta, "E"), how.rows


@per_device
def _backward_plan(
    kernel: str, device: torch.device, experts: int, k: int, sigmoid: bool, normalizes: bool
) -> tuple[Held, int]:
    """The same for the gradient."""
    how = configuration(kernel, device, _power(experts))
    meta = {"K": k, "CHOICES": _power(k), "SIGMOID": sigmoid, "NORMALIZES": normalizes}
    meta |= {"LANES": _power(experts), "ROWS": how.rows, **how.options}
    return prepared(kernels.backward, meta, "E"), how.rows


def _normalizes(scoring: str, renormalize: bool) -> bool:
    return renormalize or scoring == "softmax_of_chosen"


def _memory(out: Tensor | None, like: Tensor, k: int, dtype: torch.dtype) -> Tensor:
    """Where a result is written: ``out`` where that has no gaps."""
    if out is not None and out.is_contiguous():
        return out
    return like.new_empty((*like.shape[:-1], k), dtype=dtype)


def moe_route(
    logits: Tensor,
    *,
    bias: Tensor | None = None,
    k: int,
    scoring: str,
    renormalize: bool,
    factor: float,
    groups: int = 1,
    groups_kept: int = 1,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """``weights: (..., k)`` in float32 and ``experts: (..., k)`` in int32.

    ``logits``: ``(..., E)``, any strides; float32, float16 or bfloat16. ``bias``: ``(E,)``, any stride, of that dtype
    or float32. ``out``: any strides.
    """
    experts = logits.shape[-1]
    given = (None, None) if out is None else out
    weights = _memory(given[0], logits, k, torch.float32)
    chosen = _memory(given[1], logits, k, torch.int32)
    rows = logits.numel() // experts
    if rows:
        x, stride = with_row_stride(logits)
        normalizes, biased = _normalizes(scoring, renormalize), bias is not None
        held, together = _forward_plan(
            "moe_route.forward", x.device, experts, k, scoring, normalizes, biased, groups, groups_kept
        )
        held.launch(
            grid_of(cdiv(rows, together)),
            x,
            bias,
            weights,
            chosen,
            rows,
            stride,
            0 if bias is None else bias.stride(0),
            float(factor),
        )
    return delivered(weights, given[0]), delivered(chosen, given[1])


def backward(
    grad_weights: Tensor,
    logits: Tensor,
    experts: Tensor,
    *,
    k: int,
    scoring: str,
    renormalize: bool,
    factor: float,
    groups: int = 1,
    groups_kept: int = 1,
    needs: tuple[bool, bool] = (True, False),
) -> tuple[Tensor | None, None]:
    """The gradient for ``logits`` from that of ``weights`` and from ``experts`` as forward returned them.

    Any strides; each row's depends on that row alone.
    """
    del groups, groups_kept  # experts tell all of it
    if not needs[0]:
        return None, None
    count = logits.shape[-1]
    grad_logits = contiguous_like(logits)
    rows = logits.numel() // count
    if rows:
        x, stride = with_row_stride(logits)
        grad, grad_stride = with_row_stride(grad_weights)
        chosen, chosen_stride = with_row_stride(experts)
        held, together = _backward_plan(
            "moe_route.backward", x.device, count, k, scoring == "sigmoid", _normalizes(scoring, renormalize)
        )
        held.launch(
            grid_of(cdiv(rows, together)),
            grad,
            x,
            chosen,
            grad_logits,
            rows,
            count,
            grad_stride,
            stride,
            chosen_stride,
            float(factor),
        )
    return grad_logits, None
