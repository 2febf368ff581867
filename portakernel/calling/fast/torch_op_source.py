"""Generates the look-up of a call by a torch op, ``torch.ops.portakernel.<op>``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from portakernel.calling.fast.generated import define
from portakernel.calling.fast.key_layout import CallKind, key_source
from portakernel.calling.fast.public_source import GLOBALS, OUTSIDE, Lookup, canonical_terms, groups_of, ours
from portakernel.claims.request import Phase
from portakernel.contract import Contract, Result
from portakernel.contract.choices import existence


def _returned(contract: Contract, results: Sequence[Result], values: str) -> str:
    """What a torch op returns of a kernel's ``result``: an empty tensor for each one that does not exist."""
    terms = [existence(result.when) for result in results if result.when is not None]
    if not terms:
        return "_result"
    like = contract.names[0]
    otherwise = f"_completed(_result, ({values}), {like}, saved={len(results) > len(contract.outputs)})"
    if len(results) == 2 and results[0].when is None:
        otherwise = f"((_result[0] if _result.__class__ is tuple else _result), {like}.new_empty(0))"
    return f"_result if {' and '.join(terms)} else {otherwise}"


def make_hit(contract: Contract, lookup: Lookup, kind: CallKind, names: dict[str, Any]) -> Callable[..., Any]:
    """``hit(*tensors, *parameters, kernel, *rest)`` of a torch op: what it returns; None on a miss.

    ``kernel`` and the rest are the op's own arguments (``kernel_argument``). ``names`` supplies ``_table``,
    ``_context``, ``_dispatcher``, ``_named`` (policies with such a ``kernel``) and ``_completed``, for results that do
    not exist.
    """
    given, _ = groups_of(contract)
    phase = kind.phase
    canonical, words = canonical_terms(contract)
    tensors = ", ".join(contract.names)
    # torch hands windows over as lists
    windows = [parameter.name for parameter in contract.parameters if parameter.kind == "window"]
    listed = "".join(f"    {name} = tuple({name}) if type({name}) is list else {name}\n" for name in windows)
    values = "".join(f"{parameter.name}, " for parameter in contract.parameters)
    returned = _returned(contract, (*contract.outputs, *(contract.saved if phase is Phase.TRAINING else ())), values)
    defaults = [f"{parameter.name}={parameter.default!r}" for parameter in contract.parameters]
    optional = [f"{tensor.name}=None" if tensor.optional else tensor.name for tensor in contract.tensors]
    accepted = ", ".join([*optional, *defaults, "kernel=''", "*_rest"])
    out = ", None" if phase is Phase.INFERENCE else ""
    # in an op's implementation autograd has had its turn
    recording = "_form.leaf and _grad_enabled()" if phase is Phase.INFERENCE else "False"
    source = f"""\
def hit({accepted}):
{listed}    _form = _forms.latest
    if not (
            {ours(contract)} and (_form.check({tensors}) or (_form := _forms.find({tensors})) is not None)
            and {OUTSIDE} and not ({recording}){canonical}
    ):
        return None
    {lookup.lines}
    if not ({lookup.fit}):
        return None
    _policy = _dispatcher.policy() if _context() else _dispatcher.process_policy
    if kernel and kernel != _dispatcher.trace_token:
        _policy = _named.get((kernel, _policy))
    _placement = _table.get({key_source(lookup.key, kind)})
    if _placement is None:
        return None
    try:
        _result = _placement.launch({given}{out})
    except _CannotRun:
        return None
    return {returned}
"""
    names = {**GLOBALS, **words, **lookup.names, **names, "_forms": lookup.forms}
    made: Callable[..., Any] = define(source, "hit", f"{contract.op}.hit", names)
    return made
