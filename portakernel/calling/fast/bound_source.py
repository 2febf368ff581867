"""Generates the call of a bound handle: guards, then the kernel itself.

Of ``rms_norm``, for a kernel whose own defaults are as the example's but for ``eps``, shortened::

    def call(x, weight, keywords_only=..., eps=..., weight_offset=..., out=...):
        if keywords_only is not ... or eps is not ... or weight_offset is not ... or out is not ...:
            ...  # on to the function with the op's own signature
        form = forms.latest
        alike = not (x.is_nested or weight is not held_weight and weight.is_nested) and form.check(x, weight)
        if alike:
            return kernel(x, weight, eps=1e-06)
        return rms_norm(x, weight)
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
    example's key and ``launch`` is the kernel's. ``names`` supplies what that calls, ``forms`` (exact ones, each
    checked when it was first seen), the tensors that are ``held_<name>``, ``recorded``, ``into``, ``otherwise``, and
    ``traced`` with the kernel's ``name``.
    """
    writer = _HandleWriter(contract, parts, expected, names)
    canonical, words = canonical_terms(contract)
    source = f"{writer.full(launch, canonical)}\n{writer.brief(launch)}"
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
        self.shapes = f"    {'; '.join(parts.shapes)}\n" if any("s_" in part for part in parts.open) else ""
        self.usual = _defaults(names["kernel"])
        self.recorded = LaunchSource(CallSource("recorded", (*self.given.split(", "), "None")))
        tensors = ", ".join(contract.names)
        held = [tensor.name for tensor in contract.tensors if f"held_{tensor.name}" in names]
        alike = f"form.check({tensors}) and not (form.leaf and grad_enabled()) and {OUTSIDE}"
        self.guards = f"""\
{self.shapes}    form = forms.latest
    try:
        alike = not ({nested(contract, held=held)}) and {alike}
    except AttributeError:
        alike = False  # no tensor: `otherwise` refuses it
"""

    def full(self, launch: LaunchSource, canonical: str) -> str:
        """The function with the op's own signature; ``canonical`` are its terms for parameters."""
        contract = self.contract
        no_out = "" if contract.outputs else "    out = None\n"
        return f"""\
def {contract.op}({", ".join(arguments(contract, *outs(contract)))}):
{no_out}{named_dtypes(contract)}    if compiling():
        return traced({self.given}, out, name)
{self.guards}    if alike and out is None{canonical}{_compared(self.opened)}:
        return {_run(launch, self.recorded)}
    if out is not None and (written := into({self.given}, out)) is not None:
        return written
    return otherwise({self.groups}, out)
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
        addresses = {part: it for part, it in self.opened.items() if "aligned_" in part or "_alignment(" in part}
        return f"""\
def call({", ".join([*optional, "keywords_only=...", *(f"{name}=..." for name in changing)])}):
    if {" or ".join(["keywords_only is not ...", "compiling()", *(f"{name} is not ..." for name in changing)])}:
        if keywords_only is not ...:
            return {contract.op}({positional}, keywords_only)  # refused
        changed = {{{", ".join(f"{name!r}: {name}" for name in changing)}}}
        changed = {{name: value for name, value in changed.items() if value is not ...}}
        return {contract.op}({positional}, **changed)
{"".join(f"    {name} = None" + chr(10) for name in absent)}{self.guards}    if alike{_compared(addresses)}:
        return {run}
    return {contract.op}({positional})
"""


def _run(launch: LaunchSource, recorded: LaunchSource) -> str:
    """The kernel's launch; while a profiler records, through the placement."""
    return f"{recorded} if profiler._is_profiler_enabled else {launch}"


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
