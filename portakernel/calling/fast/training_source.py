"""Generates what an op's node in eager autograd graphs does: forward that keeps, backward that finds its kernel.

Of ``rms_norm``::

    def forward(_ctx, x, weight, _placement, _values):
        y, rstd = _placement.launch(x, weight, *_values)
        _ctx.save_for_backward(x, weight, rstd)
        _ctx.placement, _ctx.values = _placement, _values
        _ctx.set_materialize_grads(False)
        return y
"""
# pyright: reportPrivateUsage=false
# The level of forward-mode duals has no public name.

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from portakernel.calling.fast.forms import Forms, Signatures
from portakernel.calling.fast.generated import define
from portakernel.calling.fast.key_layout import CallKind, Source, key_source
from portakernel.calling.fast.public_source import GLOBALS, OUTSIDE, Lookup
from portakernel.claims.request import Phase
from portakernel.contract import Contract
from portakernel.tensors.layout import has_plain_memory
from portakernel.tensors.torch_internals import dispatch_modes, forward_ad, innermost_transform


def make_forward(
    contract: Contract, made: Contract, *, materialise: bool, marks: Mapping[str, Any]
) -> Callable[..., Any]:
    """``forward(ctx, *tensors, placement, values)`` of calls with parameters for which the contract is ``made``.

    ``marks`` has, by kernel, the tensor that is kept beside the contract's, if one is.
    """
    tensors, outputs = ", ".join(contract.names), [result.name for result in made.outputs]
    results = [*outputs, *(saved.name for saved in made.saved)]
    exist = {*contract.names, *results}
    kept = [name if name in exist else "None" for name in _kept(contract)]
    mark = ", _marks[_placement.kernel.name]" if marks else ""
    constant = [result.name for result in made.outputs if not result.differentiable]
    lines = [f"{', '.join(results)} = _placement.launch({tensors}, *_values)"]
    if len(results) == 1:  # some kernels return it alone, some as they return several
        lines.append(f"if {results[0]}.__class__ is tuple: {results[0]}, = {results[0]}")
    if contract.gradient != "identity":
        lines += [
            f"_ctx.save_for_backward({', '.join(kept)}{mark})",
            "_ctx.placement, _ctx.values = _placement, _values",
        ]
        lines += [f"_ctx.mark_non_differentiable({', '.join(constant)})"] if constant else []
        lines.append(f"_ctx.set_materialize_grads({materialise})")
    lines.append(f"return {', '.join(outputs)}")
    body = "\n    ".join(lines)
    source = f"def forward(_ctx, {tensors}, _placement, _values):\n    {body}\n"
    function: Callable[..., Any] = define(source, "forward", f"{contract.op}.recorded", {"_marks": marks})
    return function


def make_backward(
    contract: Contract,
    made: Contract,
    lookup: Lookup,
    signatures: Signatures,
    names: Mapping[str, Any],
    marks: Mapping[str, torch.Tensor],
) -> Callable[..., Any]:
    """``backward(ctx, *grads)`` of the same calls.

    ``lookup`` is that of the op's calls, by whose dtypes and devices, the ``signatures``, its keys begin. ``names``
    supplies ``_table``, ``_policy_of`` (a forward placement's), ``_own`` (the names of kernels that save in their own
    way), ``_check``, which looks for gradients that are missing, and ``_slow(ctx, grads, saved)`` for whatever is not
    plain, or was not seen before; ``saved`` is what was kept, if it is unpacked, which may be done once. ``marks`` are
    forward's.
    """
    given = [f"grad_{output.name}" for output in made.outputs]
    grads = [f"grad_{output.name}" for output in contract.outputs if output.differentiable]
    kept, parameters = _kept(contract), [parameter.name for parameter in contract.parameters]
    sources = [contract.stands_for.get(name, name) for name in contract.names]
    sources = [source if source in (*contract.backward_inputs, *grads) else "None" for source in sources]
    # what a key is made of goes by the arguments' names, which the code's own shall not be
    stand_ins = [f"{name} = {source}" for name, source in zip(contract.names, sources, strict=True) if name != source]
    slow, count = f"return _slow(_ctx, ({', '.join(given)},), _saved)", len(contract.names)
    every = ", ".join([*grads, *kept])
    unpacked, kind = [*kept, *(["_mark"] if marks else [])], key_source(lookup.key, CallKind(Phase.BACKWARD))
    lines = [f"{', '.join(unpacked)}, = _saved"] if unpacked else []
    same = ""
    if marks:  # checkpointing may have replaced what was kept by another kernel's
        same = "and _mark is not None and _mark.data_ptr() == _marks[_saver].data_ptr()"
        lines.append("_saver = _ctx.placement.kernel.name")
        kind = key_source(lookup.key, CallKind(Phase.BACKWARD, saved_by=Source("_own.get(_saver)")))
    lines += [f"{', '.join(parameters)}, = _values"] if parameters else []
    source = f"""\
def backward(_ctx, {", ".join(given)}):
    _saved = None
    if _grad_enabled() or _compiling() or {" is ".join([*grads, "None"])}:
        {slow}
    _saved = _ctx.saved_tensors
    if len(_saved) != {len(unpacked)}:
        {slow}
    _form, _values = _forms.latest, _ctx.values
    {"; ".join([*lines, *stand_ins])}
    if not (
            (_form.check({every}) or (_form := _forms.find({every})) is not None)
            and {OUTSIDE} and _transforms() is None {same}
    ):
        {slow}
    {lookup.lines}
    if not ({lookup.fit}):
        {slow}
    _policy = _policy_of(_ctx.placement)
    _placement = _table.get({kind})
    if _placement is None:
        {slow}
    _needs = _ctx.needs_input_grad[:{count}]
    try:
        _g = _placement.launch({every}, *_values, _needs)
    except _CannotRun:
        {slow}
    if {" or ".join(f"(_needs[{place}] and _g[{place}] is None)" for place in range(count))}:
        _check(_g, _needs)
    return {", ".join(f"_g[{place}] if _needs[{place}] else None" for place in range(count))}, None, None
"""
    places = [every.split(", ").index(source) if source != "None" else None for source in sources]
    forms = Forms(are_plain, _OfArguments(signatures, places))
    scope = {**GLOBALS, **lookup.names, **names, "_forms": forms, "_marks": marks}
    function: Callable[..., Any] = define(source, "backward", f"{contract.op}.gradient", scope)
    return function


class _OfArguments(Signatures):
    """The signatures of an op's arguments, of which each stands at a place among what backward is given, or nowhere."""

    def __init__(self, signatures: Signatures, places: Sequence[int | None]) -> None:
        self._signatures, self._places = signatures, places

    def of(self, tensors: Sequence[torch.Tensor | None]) -> object:
        return self._signatures.of([None if place is None else tensors[place] for place in self._places])


def _kept(contract: Contract) -> list[str]:
    """The names of what a node keeps for backward."""
    return [*contract.backward_inputs, *(saved.name for saved in contract.saved)]


def are_plain(*tensors: torch.Tensor | None) -> bool:
    """Whether a kernel may read the memory of gradients and of what was kept, which hooks may have replaced."""
    if innermost_transform() is not None or dispatch_modes() or forward_ad._current_level >= 0:
        return False
    return all(tensor is None or has_plain_memory(tensor) for tensor in tensors)
