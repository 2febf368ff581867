"""Generates the call of a bound handle: guards, then the kernel itself."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from portakernel.calling.fast.expressions import Expressions
from portakernel.calling.fast.generated import define
from portakernel.calling.fast.public_source import (
    GLOBALS,
    OUTSIDE,
    canonical_terms,
    groups_of,
    know_defaults,
    named_dtypes,
    nested,
)
from portakernel.contract import Contract
from portakernel.contract.signature_text import arguments, document, outs


def make_bound(
    contract: Contract, parts: Expressions, expected: tuple[Any, ...], launch: str, names: dict[str, Any]
) -> Callable[..., Any]:
    """The call of a bound handle: for tensors like a known form's, sizes and strides included, at once the kernel.

    ``contract`` is the example's, without open choices, its values for defaults; ``expected`` are the open parts of the
    example's key and ``launch`` is the call of the kernel. ``names`` supplies what that calls, ``forms`` (exact ones,
    each checked when it was first seen), the tensors that are ``held_<name>``, ``recorded``, ``into``, ``otherwise``,
    and ``traced`` with the kernel's ``name``. What is called with tensors alone spares Python the keywords, which cost
    as much as a guard: there, each has a default, and one in between refuses what is given by position.
    """
    given, groups = groups_of(contract)
    canonical, words = canonical_terms(contract)
    tensors = ", ".join(contract.names)
    parameters = {parameter.name: parameter.default for parameter in contract.parameters}
    terms = dict(zip(parts.open, expected, strict=True))
    # parts of an address; the rest are the parameters', which are the example's where none is given
    of_tensors = {part: value for part, value in terms.items() if "aligned_" in part or "_alignment(" in part}
    positional = [tensor.name for tensor in contract.tensors if not tensor.keyword]
    optional = [f"{t.name}=None" if t.optional else t.name for t in contract.tensors if not t.keyword]
    absent = "".join(f"    {tensor.name} = None\n" for tensor in contract.tensors if tensor.keyword)
    changing = [*(t.name for t in contract.tensors if t.keyword), *parameters]
    changing += ["out"] if contract.outputs else []
    values = {**{name: repr(value) for name, value in parameters.items()}, "out": "None"}
    usual = _defaults(names["kernel"])
    held = [tensor.name for tensor in contract.tensors if f"held_{tensor.name}" in names]
    alike = f"form.check({tensors}) and not (form.leaf and grad_enabled()) and {OUTSIDE}"
    guarded = f"""\
    try:
        alike = not ({nested(contract, held=held)}) and {alike}
    except AttributeError:
        alike = False  # no tensor: `otherwise` tells
"""
    shapes = f"    {'; '.join(parts.shapes)}\n" if any("s_" in part for part in parts.open) else ""
    run = f"recorded({given}, None) if profiler._is_profiler_enabled else {launch}"
    no_out = "" if contract.outputs else "    out = None\n"
    source = f"""\
def {contract.op}({", ".join(arguments(contract, *outs(contract)))}):
{no_out}{named_dtypes(contract)}    if compiling():
        return traced({given}, out, name)
{shapes}    form = forms.latest
{guarded}    if alike and out is None{canonical}{_compared(terms)}:
        return {run}
    if out is not None and (written := into({given}, out)) is not None:
        return written
    return otherwise({groups}, out)

def call({", ".join([*optional, "keywords_only=...", *(f"{name}=..." for name in changing)])}):
    if {" or ".join(["keywords_only is not ...", "compiling()", *(f"{name} is not ..." for name in changing)])}:
        if keywords_only is not ...:
            return {contract.op}({", ".join(positional)}, keywords_only)  # refused
        changed = {{{", ".join(f"{name!r}: {name}" for name in changing)}}}
        changed = {{name: value for name, value in changed.items() if value is not ...}}
        return {contract.op}({", ".join(positional)}, **changed)
{absent}{shapes}    form = forms.latest
{guarded}    if alike{_compared(of_tensors)}:
        return {_with_values(run, given, values, usual)}
    return {contract.op}({", ".join(positional)})
"""
    scope = {**GLOBALS, **words, **parameters, **parts.names, **names, "out": None}
    full: Callable[..., Any] = define(source, contract.op, f"bound.{contract.op}", scope)
    know_defaults(full)
    made: Any = full.__globals__["call"]
    made.__signature__ = inspect.signature(full)
    made.__name__ = made.__qualname__ = f"bound {contract.op}"
    made.__doc__ = document(contract)
    made.__module__ = "portakernel.calling.bound_kernel"
    function: Callable[..., Any] = made
    return function


def _defaults(kernel: Callable[..., Any]) -> dict[str, str]:
    """What a kernel takes for arguments that it is not given, as source."""
    try:
        parameters = inspect.signature(kernel, follow_wrapped=False).parameters.values()
    except (TypeError, ValueError):
        return {}  # not a Python function, which may be one without a signature
    return {each.name: repr(each.default) for each in parameters if each.default is not each.empty}


def _with_values(run: str, given: str, values: Mapping[str, str], usual: Mapping[str, str]) -> str:
    """``run`` with the example's values in the place of parameters; what a kernel takes anyway need not be passed."""
    literal = ", ".join(values.get(name, name) for name in given.split(", "))
    run = run.replace(f"({given},", f"({literal},")

    def passed(found: re.Match[str]) -> str:
        name = found[1]
        value = values.get(name, name)
        return "" if value == usual.get(name) else f", {name}={value}"

    return re.sub(r", (\w+)=\1\b", passed, run)


def _compared(terms: Mapping[str, Any]) -> str:
    """Further terms: parts of a key are what they were."""
    found = []
    for part, value in terms.items():
        plain = part if value is True else f"not {part}" if value is False else f"{part} == {value!r}"
        found.append(f" and {plain}")
    return "".join(found)
