"""Generates the call of a bound handle: guards, then the kernel itself.

Of ``rms_norm``, for a kernel whose own defaults are as the example's but for ``eps``, shortened::

    def call(x, weight, _keywords_only=..., eps=..., weight_offset=..., out=...):
        if _keywords_only is not ... or eps is not ... or weight_offset is not ... or out is not ...:
            ...  # on to the function with the op's own signature
        _form = _forms.latest
        _alike = not (x.is_nested or weight is not _held_weight and weight.is_nested) and _form.check(x, weight)
        if _alike:
            return kernel(x, weight, eps=1e-06)
        return _full(x, weight)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from portakernel.calling.fast.expressions import Expressions
from portakernel.calling.fast.generated import define
from portakernel.calling.fast.launch_source import CallSource, LaunchSource
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
    contract: Contract, parts: Expressions, expected: tuple[Any, ...], launch: LaunchSource, names: dict[str, Any]
) -> Callable[..., Any]:
    """The call of a bound handle: for tensors like a known form's, sizes and strides included, at once the kernel.

    ``contract`` is the example's, without open choices, its values for defaults; ``expected`` are the open parts of the
    example's key and ``launch`` is the kernel's. ``names`` supplies what that calls, ``_forms`` (exact ones, each
    checked when it was first seen), the tensors that are ``_held_<name>``, ``_recorded``, ``_into``, ``_otherwise``,
    and ``_traced`` with the kernel's ``_name``.
    """
    writer = _HandleWriter(contract, parts, expected, names)
    canonical, words = canonical_terms(contract)
    source = f"{writer.full(launch, canonical)}\n_full = {contract.op}\n\n{writer.brief(launch)}"
    parameters = {parameter.name: parameter.default for parameter in contract.parameters}
    scope = {**GLOBALS, **words, **parameters, **parts.names, **names}
    full: Callable[..., Any] = define(source, contract.op, f"bound.{contract.op}", scope, compiles=True)
    know_defaults(full)
    made: Any = full.__globals__["call"]
    made.__signature__ = inspect.signature(full)
    made.__name__ = made.__qualname__ = f"bound {contract.op}"
    made.__doc__ = document(contract)
    made.__module__ = "portakernel.calling.bound_kernel"
    function: Callable[..., Any] = made
    return function


class _HandleWriter:
    """Writes a handle's two functions: ``full`` takes all of the op's arguments, ``brief`` is quick for tensors alone.

    What is called with tensors alone spares Python the keywords, which cost as much as a guard.
    """

    def __init__(
        self, contract: Contract, parts: Expressions, expected: tuple[Any, ...], names: Mapping[str, Any]
    ) -> None:
        self.contract = contract
        self.given, self.groups = groups_of(contract)
        self.opened = dict(zip(parts.open, expected, strict=True))
        self.shapes = f"    {'; '.join(parts.shapes)}\n" if any("_s_" in part for part in parts.open) else ""
        self.usual = _defaults(names["kernel"])
        self.recorded = LaunchSource(CallSource("_recorded", (*self.given.split(", "), "None")))
        tensors = ", ".join(contract.names)
        held = [tensor.name for tensor in contract.tensors if f"_held_{tensor.name}" in names]
        alike = f"_form.check({tensors}) and not (_form.leaf and _grad_enabled()) and {OUTSIDE}"
        self.guards = f"""\
{self.shapes}    _form = _forms.latest
    try:
        _alike = not ({nested(contract, held=held)}) and {alike}
    except AttributeError:
        _alike = False  # no tensor: `_otherwise` refuses it
"""

    def full(self, launch: LaunchSource, canonical: str) -> str:
        """The function with the op's own signature; ``canonical`` are its terms for parameters."""
        contract = self.contract
        no_out = "" if contract.outputs else "    out = None\n"
        return f"""\
def {contract.op}({", ".join(arguments(contract, *outs(contract)))}):
{no_out}{named_dtypes(contract)}    if _compiling():
        return _traced({self.given}, out, _name)
{self.guards}    if _alike and out is None{canonical}{_compared(self.opened)}:
        return {_run(launch, self.recorded)}
    if out is not None and (_written := _into({self.given}, out)) is not None:
        return _written
    return _otherwise({self.groups}, out)
"""

    def brief(self, launch: LaunchSource) -> str:
        """The function ``call`` that a handle is: where it is given more than tensors by position, it asks ``full``.

        Each keyword has a default, and one in between refuses what else is given by position.
        """
        contract = self.contract
        tensors = [tensor for tensor in contract.tensors if not tensor.keyword]
        positional = ", ".join(tensor.name for tensor in tensors)
        optional = [f"{tensor.name}=None" if tensor.optional else tensor.name for tensor in tensors]
        absent = [tensor.name for tensor in contract.tensors if tensor.keyword]
        changing = [*absent, *(p.name for p in contract.parameters), *(["out"] if contract.outputs else [])]
        literals = {parameter.name: repr(parameter.default) for parameter in contract.parameters} | {"out": "None"}
        run = _run(launch.at(literals, self.usual), self.recorded.at(literals, {}))
        # parts of an address; the rest are the parameters', which are the example's where none is given
        addresses = {part: it for part, it in self.opened.items() if "_aligned_" in part or "_alignment(" in part}
        return f"""\
def call({", ".join([*optional, "_keywords_only=...", *(f"{name}=..." for name in changing)])}):
    if {" or ".join(["_keywords_only is not ...", "_compiling()", *(f"{name} is not ..." for name in changing)])}:
        if _keywords_only is not ...:
            return _full({positional}, _keywords_only)  # refused
        _changed = {{{", ".join(f"{name!r}: {name}" for name in changing)}}}
        _changed = {{_name: _value for _name, _value in _changed.items() if _value is not ...}}
        return _full({positional}, **_changed)
{"".join(f"    {name} = None" + chr(10) for name in absent)}{self.guards}    if _alike{_compared(addresses)}:
        return {run}
    return _full({positional})
"""


def _run(launch: LaunchSource, recorded: LaunchSource) -> str:
    """The kernel's launch; while a profiler records, through the placement."""
    return f"{recorded} if _profiler._is_profiler_enabled else {launch}"


def _defaults(kernel: Callable[..., Any]) -> dict[str, str]:
    """A kernel's own defaults, as source."""
    try:
        parameters = inspect.signature(kernel, follow_wrapped=False).parameters.values()
    except (TypeError, ValueError):
        return {}  # not a Python function, which may be one without a signature
    return {each.name: repr(each.default) for each in parameters if each.default is not each.empty}


def _compared(terms: Mapping[str, Any]) -> str:
    """Further terms, which hold while parts of a key are what they were."""
    return "".join(f" and {_equal(part, value)}" for part, value in terms.items())


def _equal(part: str, value: Any) -> str:
    if value is True:
        return part
    return f"not {part}" if value is False else f"{part} == {value!r}"
