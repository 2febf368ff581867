"""Generates the fast path of ``out=``: the memory is judged by sizes and addresses alone, then the kernel writes it.

What cannot be judged so (strided ``out``, inputs with gaps, parts that overlap) is left to ``OpCaller.into``, which
looks closer, and explains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from portakernel.calling.fast.expressions import Expressions, dimension_sources, leading_source
from portakernel.calling.fast.forms import Forms, Signatures
from portakernel.calling.fast.generated import define
from portakernel.calling.fast.key_layout import INPLACE, PLAIN, key_source
from portakernel.calling.fast.public_source import GLOBALS, OUTSIDE, canonical_terms, make_plain, ours
from portakernel.contract import Contract, Result
from portakernel.contract.parts import alternatives
from portakernel.contract.sizes import parse_size
from portakernel.tensors.layout import has_plain_memory, mark_written


def has_fast_out(contract: Contract) -> bool:
    """Whether the results' shapes and dtypes follow from the arguments alone, whatever the parameters."""
    parameters = {parameter.name for parameter in contract.parameters}
    plain = not contract.mutated and not contract.choosers
    shapes = [shape for result in contract.outputs for shape in alternatives(result.shape)]
    sized = any("$" in size for shape in shapes for size in shape)
    return plain and not sized and all(result.dtype not in parameters for result in contract.outputs)


def make_into(
    contract: Contract, parts: Expressions, signatures: Signatures, names: dict[str, Any]
) -> Callable[..., Any]:
    """``into(*tensors, *parameters, out, kernel)``: what the kernel returns; None where the call has to be looked at.

    ``names`` is as for ``make_public``.
    """
    key = "".join(f"{part}, " for part in parts.parts)
    tail = f"""\
    {parts.judged}
    _policy = _dispatcher.policy() if _context() else _dispatcher.process_policy
    if kernel is not None:
        _policy = _pinned.get((kernel, _policy)) if type(kernel) is str else None
    _placement = _table.get({key_source(key, INPLACE)} if _over else {key_source(key, PLAIN)})
    if _placement is None:
        return None
"""
    return _make(contract, parts, signatures, "out, kernel", tail, names, falls_back=True)


def make_into_bound(
    contract: Contract, parts: Expressions, signatures: Signatures, names: dict[str, Any]
) -> Callable[..., Any]:
    """``into(*tensors, *parameters, out)`` of a bound handle.

    ``names`` supplies ``_placement``, ``_may_overwrite``, and of the example ``_signature``, ``_steady`` (what
    ``keys.make_steady`` makes of it) and ``_opened``.
    """
    steady, opened = ("".join(f"{part}, " for part in each) for each in (parts.steady, parts.open))
    size_of, _, _ = dimension_sources(contract)
    sizes = "".join(f"{size_of[name]}, " for name in contract.fixed_dims if name in size_of)
    tail = f"""\
    {"; ".join(parts.products)}
    if (_over and not _may_overwrite) or _form.signature is not _signature:
        return None
    if ({steady}{sizes}) != _steady or ({opened}) != _opened:
        return None
"""
    return _make(contract, parts, signatures, "out", tail, names, falls_back=False)


def _make(
    contract: Contract,
    parts: Expressions,
    signatures: Signatures,
    more: str,
    tail: str,
    names: dict[str, Any],
    *,
    falls_back: bool,
) -> Callable[..., Any]:
    outs = [f"_out{place}" for place in range(len(contract.outputs))]
    tensors, parameters = list(contract.names), [parameter.name for parameter in contract.parameters]
    every = ", ".join([*tensors, *outs])
    single = len(outs) == 1
    unpacked = "_out0 = out" if single else f"if type(out) is not tuple or len(out) != {len(outs)}: return None\n"
    unpacked += "" if single else f"    {', '.join(outs)} = out"
    canonical, words = canonical_terms(contract)
    launch = f"_result = _placement.launch({', '.join([*tensors, *parameters])}, out)"
    if falls_back:
        launch = f"try: {launch}\n    except _CannotRun: return None"
    fits = [parts.fit, *(_fits(contract, result, out) for result, out in zip(contract.outputs, outs, strict=True))]
    source = f"""\
def into({", ".join([*tensors, *parameters])}, {more}):
    {unpacked}
    _form = _forms.latest
    try:
        _ours = {ours(contract, *outs)}
    except AttributeError:
        return None
    if not (
            _ours
            and (_form.check({every}) or (_form := _forms.find({every})) is not None)
            and not (_form.leaf and _grad_enabled()) and {OUTSIDE}
            {canonical.removeprefix(" ")}
    ):
        return None
    {"; ".join([*parts.shapes, *(f"_s_{out} = {out}.shape" for out in outs)])}
    if not ({" and ".join(fits)}):
        return None
    _over = False
{_apart(contract, outs)}{tail}    {launch}
    {"; ".join(f"_mark_written({out})" for out in outs)}
    return _result
"""
    forms = Forms(_writable(contract, parts), _OfInputs(signatures, len(tensors)))
    scope = {**GLOBALS, **words, **parts.names, **names, "_forms": forms, "_mark_written": mark_written}
    made: Callable[..., Any] = define(source, "into", f"{contract.op}.into", scope)
    return made


def _fits(contract: Contract, result: Result, out: str) -> str:
    """Whether ``out`` has the shape of ``result`` and no gaps, as source."""
    if not isinstance(result.shape, tuple):
        raise TypeError(f"{result.name} has a shape that depends on a parameter; has_fast_out tells")
    sizes, _, _ = dimension_sources(contract)
    leads = bool(result.shape) and result.shape[0].startswith("*")
    fixed = result.shape[1:] if leads else result.shape
    leading = f"_s_{out}[:-{len(fixed)}]" if fixed else f"_s_{out}"
    rank = f"len({leading_source(contract)}) + {len(fixed)}" if leads else str(len(fixed))
    terms = [f"len(_s_{out}) == {rank}", *([f"{leading} == {leading_source(contract)}"] if leads else [])]
    for place, text in enumerate(fixed):
        size = parse_size(text)
        terms.append(f"_s_{out}[{place - len(fixed)}] == {size.source(sizes.get(size.name or '', ''))}")
    return " and ".join([*terms, f"{out}.is_contiguous()"])


def _apart(contract: Contract, outs: Sequence[str]) -> str:
    """Lines that return None unless each result is an input that it may be, or shares no byte with any tensor."""
    lines = list[str]()
    for place, out in enumerate(outs):
        lines.append(f"_begin{place} = {out}.data_ptr(); _end{place} = _begin{place} + {out}.nbytes")
        for other in range(place):
            lines.append(f"if _begin{other} < _end{place} and _begin{place} < _end{other}: return None")
        allowed = contract.inplace if len(outs) == 1 else contract.inplace[place : place + 1]
        for tensor in contract.tensors:
            name = tensor.name
            test = f"{name} is None or " if tensor.optional else ""
            apart = f"{name}.data_ptr() >= _end{place} or {name}.data_ptr() + {name}.nbytes <= _begin{place}"
            leave = f"elif not ({test}({name}.is_contiguous() and ({apart}))): return None"
            lines += [f"if {name} is {out}: _over = True" if name in allowed else f"if {name} is {out}: return None"]
            lines.append(leave)
    return "".join(f"    {line}\n" for line in lines)


def _writable(contract: Contract, parts: Expressions) -> Callable[..., bool]:
    """Whether arguments may be read, and results be written, as they are: the dtypes, the device, no lazy bits."""
    plain, count = make_plain(contract, parts.ranks), len(contract.tensors)
    places = {tensor.name: place for place, tensor in enumerate(contract.tensors)}

    def writable(*tensors: Tensor | None) -> bool:
        given, outs = tensors[:count], tensors[count:]
        if not plain(*given):
            return False
        for result, out in zip(contract.outputs, outs, strict=True):
            like = given[places[result.like]]
            if not isinstance(out, Tensor) or like is None:
                return False
            # of float64, where that is for tests, results that are else in float32 are in float64 too
            as_wide = result.dtype is None or (like.dtype is torch.float64 and bool(contract.in_float64))
            dtype = like.dtype if as_wide else getattr(torch, str(result.dtype))
            alike = out.dtype == dtype and out.device == like.device and out.layout is torch.strided
            if not alike or not has_plain_memory(out) or (out.requires_grad and torch.is_grad_enabled()):
                return False
        return True

    return writable


class _OfInputs(Signatures):
    """Signatures of the inputs alone, which come first: the results' dtypes and devices follow from theirs."""

    def __init__(self, signatures: Signatures, inputs: int) -> None:
        super().__init__()
        self._of_inputs, self._inputs = signatures, inputs

    def of(self, tensors: Sequence[Tensor | None]) -> object:
        """As ``Signatures``."""
        return self._of_inputs.of(tensors[: self._inputs])
