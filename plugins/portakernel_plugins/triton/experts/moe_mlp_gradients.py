"""The gradients of ``moe_mlp`` in Triton, from its arguments alone: the first products are formed again.

For each assignment of a token to an expert e, with ``w`` its weight, ``g`` the gradient of the token's y, and ``h``
what the gate made of the halves of z, of its slopes s and t for gate and up:

    z = x @ w_in[e].T + bias_in[e]                   u = g @ w_out[e]
    grad_weights = h . u + g . bias_out[e]           grad_z: w * u * s and w * u * t
    grad_w_out[e] = sum of g.T @ (w * h)             grad_bias_out[e] = sum of w * g
    grad_w_in[e] = sum of grad_z.T @ x               grad_bias_in[e] = sum of grad_z
    grad_x = sum of grad_z @ w_in[e], over a token's assignments in the order of its experts

A program has one assignment, or a tile of one expert's matrix or bias, whose assignments it adds up in their order.
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
from portakernel_plugins.triton.gates.moe_gates import gated_pair_and_slopes
from portakernel_plugins.triton.launching.configurations import configuration
from portakernel_plugins.triton.matrix.grouped_gradients import gradient_of_bias, gradient_of_matrices
from portakernel_plugins.triton.matrix.grouped_mm import multiply


@triton.jit(do_not_specialize=["programs"])
def _of_gate(
    z,  # (R, 2I), contiguous, as all here: becomes its gradient
    u,  # (R, I): becomes the weighted h
    order,  # (R,): which assignment each row is
    offsets,  # of E experts, the last of which is the number of rows
    weights,  # (T, K)
    grad_weights,  # (T, K), contiguous
    grad_y,  # (T, H)
    chosen,  # (T, K): the expert of each assignment
    bias,  # (E, H), of the second product. None: there is none
    width,
    hidden,
    experts,
    choices,
    programs,
    weights_row,
    weights_choice,
    grad_row,
    grad_column,
    chosen_row,
    chosen_choice,
    bias_expert,
    bias_column,
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
    token, choice = assignment // choices, assignment % choices
    weight = tl.load(weights + token * weights_row + choice * weights_choice).to(tl.float32)
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
        h, of_gate, of_up = gated_pair_and_slopes(gate, up, ACTIVATION)
        back = tl.load(u + column, mask=inside, other=0.0).to(tl.float32)
        total += h * back
        # where BLOCK has fewer elements than there are threads, several warps load each: all of them before one stores
        tl.debug_barrier()
        tl.store(u + column, (h * weight).to(u.dtype.element_ty), mask=inside)
        back *= weight
        of_gate, of_up = (back * of_gate).to(z.dtype.element_ty), (back * of_up).to(z.dtype.element_ty)
        if IN_TURN:
            tl.store(z + both, tl.reshape(tl.join(of_gate, of_up), (2 * BLOCK,)), mask=both < 2 * width)
        else:
            tl.store(z + column, of_gate, mask=inside)
            tl.store(z + width + column, of_up, mask=inside)
    if bias is not None:
        bias += tl.load(chosen + token * chosen_row + choice * chosen_choice).to(tl.int64) * bias_expert
        grad_y += token * grad_row
        for first in range(0, hidden, BLOCK):
            column = (first + lane).to(tl.int64)
            inside = column < hidden
            g = tl.load(grad_y + column * grad_column, mask=inside, other=0.0).to(tl.float32)
            total += g * tl.load(bias + column * bias_column, mask=inside, other=0.0).to(tl.float32)
    tl.store(grad_weights + assignment, tl.sum(total).to(grad_weights.dtype.element_ty))


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
    activation: str,
    halves: str = "concat",
    format: str = "none",
    needs: tuple[bool, ...] = (True, True, True, True, False, True, True),
) -> tuple[Tensor | None, ...]:
    """The gradients for ``x``, ``w_in``, ``w_out``, ``weights`` and biases that ``needs`` asks for; of any strides.

    Raises:
        ArgumentValueError: ``format`` is another than "none".
    """
    if format != "none":
        raise ArgumentValueError(f"moe_mlp: format is {format!r}; gradients are those of format='none'")
    (count, hidden, width), (_, choices) = w_out.shape, experts.shape
    assignments = experts.numel()
    order, offsets, inverse = moe_sort(experts, num_experts=count, capacity=assignments)
    z, u = x.new_empty((assignments, 2 * width)), x.new_empty((assignments, width))
    multiply("forward", x, w_in, offsets, z, bias=bias_in, gather=order, shared=choices)
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
            grad_y,
            experts,
            bias_out,
            width,
            hidden,
            count,
            choices,
            assignments,
            *weights.stride(),
            *grad_y.stride(),
            *experts.stride(),
            *((0, 0) if bias_out is None else bias_out.stride()),
            ACTIVATION=activation,
            IN_TURN=halves == "interleaved",
            BLOCK=min(how.columns, how.elements),
            **how.options,
        )
    grad_x = grad_in = grad_out = grad_before = grad_behind = None
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
    if bias_in is not None and needs[5]:
        grad_before = bias_in.new_empty(bias_in.shape)
        gradient_of_bias(grad_before, z, offsets, assignments)
    if bias_out is not None and needs[6]:
        grad_behind = bias_out.new_empty(bias_out.shape)
        gradient_of_bias(grad_behind, grad_y, offsets, assignments, of_grad=order, weights=weights)
    of_weights = grad_weights if needs[3] else None
    return grad_x, grad_in, grad_out, of_weights, None, grad_before, grad_behind
