"""The gradients of ``moe_mlp`` in Triton, from its arguments alone: the first products are formed again.

For each assignment of a token to an expert e, with ``w`` its weight, ``g`` the gradient of the token's y, and ``h``
what the gate made of the halves of z:

    z = x @ w_in[e].T                  u = g @ w_out[e]
    grad_weights = h . u               grad_z: w * u * up * activation'(gate) and w * u * activation(gate)
    grad_w_out[e] = sum of g.T @ (w * h)
    grad_w_in[e] = sum of grad_z.T @ x
    grad_x = sum of grad_z @ w_in[e], over a token's assignments in the order of its experts

A program has one assignment, or a tile of one expert's matrix, whose assignments it adds up in their order.
"""
# pyright: reportGeneralTypeIssues=false
# Python's types do not see that Triton iterates over its ranges.

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from portakernel.authoring import ArgumentValueError
from portakernel.authoring.triton import grid_of, launch, program_index
from portakernel_plugins.triton.experts.moe_mlp import sums_of_tokens
from portakernel_plugins.triton.experts.moe_sort import moe_sort
from portakernel_plugins.triton.gates.activations import value_and_slope
from portakernel_plugins.triton.launching.configurations import configuration
from portakernel_plugins.triton.matrix.grouped_gradients import gradient_of_matrices
from portakernel_plugins.triton.matrix.grouped_mm import multiply


@triton.jit(do_not_specialize=["programs"])
def _of_gate(
    z,  # (R, 2I), contiguous, as all here: becomes its gradient
    u,  # (R, I): becomes the weighted h
    order,  # (R,): which assignment each row is
    offsets,  # of E experts, the last of which is the number of rows
    weights,  # (T, K)
    grad_weights,  # (T, K), contiguous
    width,
    experts,
    choices,
    programs,
    weights_row,
    weights_choice,
    ACTIVATION: tl.constexpr,
    IN_TURN: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = program_index().to(tl.int64)
    if row >= programs:
        return
    if row >= tl.load(offsets + experts):
        return
    assignment = tl.load(order + row).to(tl.int64)
    at = weights + assignment // choices * weights_row + assignment % choices * weights_choice
    weight = tl.load(at).to(tl.float32)
    lane = tl.arange(0, BLOCK)
    z += row * 2 * width
    u += row * width
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, width, BLOCK):
        column = first + lane
        inside = column < width
        both = 2 * first + tl.arange(0, 2 * BLOCK)
        if IN_TURN:
            pairs = tl.load(z + both, mask=both < 2 * width, other=0.0)
            gate, up = tl.split(tl.reshape(pairs, (BLOCK, 2)))
        else:
            gate = tl.load(z + column, mask=inside, other=0.0)
            up = tl.load(z + width + column, mask=inside, other=0.0)
        gate, up = gate.to(tl.float32), up.to(tl.float32)
        value, slope = value_and_slope(gate, ACTIVATION)
        back = tl.load(u + column, mask=inside, other=0.0).to(tl.float32)
        total += value * up * back
        tl.store(u + column, (value * up * weight).to(u.dtype.element_ty), mask=inside)
        back *= weight
        of_gate, of_up = (back * up * slope).to(z.dtype.element_ty), (back * value).to(z.dtype.element_ty)
        if IN_TURN:
            tl.store(z + both, tl.reshape(tl.join(of_gate, of_up), (2 * BLOCK,)), mask=both < 2 * width)
        else:
            tl.store(z + column, of_gate, mask=inside)
            tl.store(z + width + column, of_up, mask=inside)
    tl.store(grad_weights + assignment, tl.sum(total).to(grad_weights.dtype.element_ty))


def backward(
    grad_y: Tensor,
    x: Tensor,
    w_in: Tensor,
    w_out: Tensor,
    weights: Tensor,
    experts: Tensor,
    *,
    activation: str,
    halves: str = "concat",
    format: str = "none",
    needs: tuple[bool, ...] = (True, True, True, True, False, False, False, False),
) -> tuple[Tensor | None, ...]:
    """The gradients for ``x``, ``w_in``, ``w_out`` and ``weights`` that ``needs`` asks for; all of any strides.

    Raises:
        ArgumentValueError: ``format`` is another than "none".
    """
    if format != "none":
        raise ArgumentValueError(f"moe_mlp: format is {format!r}; gradients are those of format='none'")
    (count, hidden, width), (_, choices) = w_out.shape, experts.shape
    assignments = experts.numel()
    order, offsets, inverse = moe_sort(experts, num_experts=count, capacity=assignments)
    z, u = x.new_empty((assignments, 2 * width)), x.new_empty((assignments, width))
    multiply("forward", x, w_in, offsets, z, gather=order, shared=choices)
    multiply("forward", grad_y, w_out.transpose(1, 2), offsets, u, gather=order, shared=choices)
    grad_weights = weights.new_zeros(weights.shape)  # of experts that are elsewhere nobody writes any
    if assignments:
        how = configuration("moe_mlp.gate", x.device, width)
        launch(
            _of_gate,
            grid_of(assignments),
            z,
            u,
            order,
            offsets,
            weights,
            grad_weights,
            width,
            count,
            choices,
            assignments,
            *weights.stride(),
            ACTIVATION=activation,
            IN_TURN=halves == "interleaved",
            BLOCK=min(how.columns, how.elements),
            **how.options,
        )
    grad_x = grad_in = grad_out = None
    if needs[0]:
        grad_x, of_rows = x.new_empty(x.shape), x.new_empty((assignments, hidden))
        multiply("forward", z, w_in.transpose(1, 2), offsets, of_rows)
        sums_of_tokens(of_rows, inverse, None, grad_x)
    if needs[1]:
        grad_in = w_in.new_empty(w_in.shape)
        gradient_of_matrices(grad_in, z, x, offsets, assignments, gather=order, shared=choices)
    if needs[2]:
        grad_out = w_out.new_empty(w_out.shape)
        gradient_of_matrices(grad_out, grad_y, u, offsets, assignments, of_grad=order, shared=choices)
    return grad_x, grad_in, grad_out, grad_weights if needs[3] else None, None, None, None, None
