"""Generates each op's public function, its key function and its bound handle's test from contract and claims.

Generated, because a loop over arguments costs more than the whole dispatch may: the code is what one would write by
hand for each op.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from portakernel.capability import CannotRun, Limit
from portakernel.contract import Contract, TensorArgument
from portakernel.layout import alignment, flat_rows, stride_last
from portakernel.torch_internals import (
    any_autocast,
    dispatch_modes,
    forward_ad,
    function_modes,
    innermost_transform,
    jit_trace,
    only_device_contexts,
)

_FACTS: dict[str, Callable[[Tensor], int]] = {
    "contiguous": Tensor.is_contiguous,
    "flat_rows": flat_rows,
    "stride_last": stride_last,
    "alignment": alignment,
}


@dataclass(frozen=True, slots=True)
class Expressions:
    """Source text over an op's arguments; ``shapes`` must be run before any of the others."""

    shapes: tuple[str, ...]
    fit: str
    parts: tuple[str, ...]
    names: dict[str, Any]


def expressions(contract: Contract, limits: Sequence[Limit], reads: Sequence[str]) -> Expressions:
    """What tells one call's key from another's: dtypes, devices, each limit's outcome, raw reads, asked features."""
    names: dict[str, Any] = {"prod": math.prod}
    shapes = tuple(f"s_{tensor.name} = {tensor.name}.shape" for tensor in contract.tensors)
    sizes, fit = _sizes(contract)
    parts = [f"{tensor.name}.dtype" for tensor in contract.tensors]
    parts += [f"{tensor.name}.device" for tensor in contract.tensors]
    parts += [_bound(limit, sizes[limit.parameter]) for limit in limits if "." not in limit.parameter]
    for tensor in contract.tensors:
        parts += _layout_parts(
            tensor, [limit for limit in limits if limit.parameter.startswith(f"{tensor.name}.")], names
        )
    for i, name in enumerate(reads):
        owner, _, fact = name.partition(".")
        names[f"read_{i}"] = _FACTS.get(fact)
        parts.append(f"read_{i}({owner})" if fact else sizes[name])
    parts += [f"{feature.name} == {feature.default!r}" for feature in contract.features]
    return Expressions(shapes, fit, tuple(parts), names)


def _sizes(contract: Contract) -> tuple[dict[str, str], str]:
    """An expression for each dimension, and one that is true when the arguments' shapes fit together."""
    sizes: dict[str, str] = {}
    ranks: list[str] = []
    equal: list[str] = []
    leading = ""
    for tensor in contract.tensors:
        shape, fixed = f"s_{tensor.name}", tensor.fixed
        if tensor.leading is not None:
            part = f"{shape}[:-{len(fixed)}]" if fixed else shape
            ranks += [f"len({shape}) >= {len(fixed)}"] if fixed else []
            equal += [f"{part} == {leading}"] if leading else []
            leading = leading or part
            sizes.setdefault(tensor.leading, f"prod({part})" if fixed else f"{tensor.name}.numel()")
        else:
            ranks.append(f"len({shape}) == {len(fixed)}")
        for place, name in enumerate(fixed):
            size = f"{shape}[{place - len(fixed)}]"
            equal += [f"{size} == {sizes[name]}"] if name in sizes else []
            sizes.setdefault(name, size)
    return sizes, " and ".join([*ranks, *equal]) or "True"


def _bound(limit: Limit, value: str) -> str:
    terms = []
    if limit.min is not None:
        terms.append(f"{value} >= {limit.min}")
    if limit.max is not None:
        terms.append(f"{value} <= {limit.max}")
    if limit.multiple_of is not None:
        terms.append(f"{value} % {limit.multiple_of} == 0")
    if limit.one_of is not None:
        terms.append(f"{value} in {limit.one_of!r}")
    if limit.power_of_two:
        terms.append(f"({value} > 0 and {value} & ({value} - 1) == 0)")
    return f"({' and '.join(terms)})"


def _layout_parts(tensor: TensorArgument, limits: Sequence[Limit], names: dict[str, Any]) -> list[str]:
    """A contiguous tensor needs no more: that fixes its other facts, except the alignment of its address."""
    strided = [limit for limit in limits if not limit.parameter.endswith(".alignment")]
    aligned = [limit for limit in limits if limit.parameter.endswith(".alignment")]
    parts = []
    if strided:
        names[f"layout_{tensor.name}"] = _outcomes(strided)
        parts.append(f"({tensor.name}.is_contiguous() or layout_{tensor.name}({tensor.name}))")
    if aligned:
        names[f"aligned_{tensor.name}"] = _outcomes(aligned)
        parts.append(f"aligned_{tensor.name}({tensor.name})")
    return parts


def _outcomes(limits: Sequence[Limit]) -> Callable[[Tensor], tuple[bool, ...]]:
    tests = [(limit, _FACTS[limit.parameter.partition(".")[2]]) for limit in limits]
    return lambda tensor: tuple(limit.admits(fact(tensor)) for limit, fact in tests)


def define(source: str, name: str, origin: str, names: dict[str, Any]) -> Any:
    """The function ``name`` that ``source`` defines, with ``names`` as its globals."""
    scope = dict(names)  # no __name__: torch.compile would take it for a module that can be imported
    exec(compile(source, f"<portakernel: {origin}>", "exec"), scope)
    return scope[name]


def make_key(contract: Contract, parts: Expressions) -> Callable[..., tuple[Any, ...]]:
    """``key(*tensors, *parameters)``; the arguments are known to fit the contract."""
    arguments = [*(t.name for t in contract.tensors), *(p.name for p in contract.parameters)]
    body = [*parts.shapes, f"return ({', '.join(parts.parts)},)"]
    source = f"def key({', '.join(arguments)}):\n" + "".join(f"    {line}\n" for line in body)
    made: Callable[..., tuple[Any, ...]] = define(source, "key", f"{contract.op}.key", parts.names)
    return made


def make_value(contract: Contract, name: str) -> Callable[..., int]:
    """``value(*tensors)``: the dimension or layout fact ``name`` of tensors that fit the contract."""
    tensors = ", ".join(tensor.name for tensor in contract.tensors)
    owner, _, fact = name.partition(".")
    shapes = "; ".join(f"s_{tensor.name} = {tensor.name}.shape" for tensor in contract.tensors)
    result = f"fact({owner})" if fact else _sizes(contract)[0][name]
    source = f"def value({tensors}):\n    {shapes}\n    return {result}\n"
    made: Callable[..., int] = define(
        source, "value", f"{contract.op}.{name}", {"prod": math.prod, "fact": _FACTS.get(fact)}
    )
    return made


# What must hold before a kernel may read the arguments' memory itself; everything else goes through torch's dispatcher.
_NAMES: dict[str, Any] = {
    "Tensor": Tensor,
    "Parameter": torch.nn.Parameter,
    "CannotRun": CannotRun,
    "grad_enabled": torch.is_grad_enabled,
    "transforms": innermost_transform,
    "dispatch_modes": dispatch_modes,
    "function_modes": function_modes,
    "only_device_contexts": only_device_contexts,
    "jit_trace": jit_trace,
    "strided": torch.strided,
    "forward_ad": forward_ad,
    "autocast": any_autocast,
    "compiling": torch.compiler.is_dynamo_compiling,
}


def plain(contract: Contract) -> str:
    """An expression that is true when the arguments' memory may be read as it is."""
    tensors = [tensor.name for tensor in contract.tensors]
    terms = [f"(type({name}) is Tensor or type({name}) is Parameter)" for name in tensors]
    terms += [f"{name}.layout is strided" for name in tensors]
    terms.append(f"not (grad_enabled() and ({' or '.join(f'{name}.requires_grad' for name in tensors)}))")
    terms += ["transforms() is None", "not dispatch_modes()", "jit_trace() is None"]
    terms.append("(not function_modes() or only_device_contexts())")
    terms += ["forward_ad._current_level < 0", "not autocast()"]
    terms += [f"not {name}.is_neg() and not {name}._is_zerotensor()" for name in tensors]
    return "\n            and ".join(terms)


def _floats(contract: Contract) -> str:
    """A further term: parameters that are plain floats; any other number is converted on the slow path."""
    return "".join(f" and type({parameter.name}) is float" for parameter in contract.parameters)


def make_public(contract: Contract, parts: Expressions, names: dict[str, Any]) -> Callable[..., Tensor]:
    """The function that ``portakernel.ops`` offers.

    ``names`` supplies ``table``, ``context`` (the context variable's getter), ``dispatcher``, ``slow`` and ``traced``.
    """
    tensors = [tensor.name for tensor in contract.tensors]
    parameters = [parameter.name for parameter in contract.parameters]
    defaults = [f"{parameter.name}={parameter.default!r}" for parameter in contract.parameters]
    given = ", ".join([*tensors, *parameters])
    groups = f"({', '.join(tensors)},), ({', '.join(parameters)}{',' if parameters else ''})"
    floats = _floats(contract)
    source = f"""\
def {contract.op}({", ".join([*tensors, "*", *defaults, "out=None", "kernel=None"])}):
    if compiling():
        return traced({given}, out, kernel)
    plain = (
            {plain(contract)}
    )
    declined = None
    if plain and out is None and kernel is None{floats}:
        {"; ".join(parts.shapes)}
        if {parts.fit}:
            policy = dispatcher.policy() if context() else dispatcher.process_policy
            placement = table.get(({", ".join(parts.parts)}, policy))
            if placement is not None:
                try:
                    result = placement.run({given}, None)
                except CannotRun as error:
                    declined = placement, error  # `slow` takes the next kernel and remembers
                else:
                    next(placement.calls)
                    return result
    return slow({groups}, out, kernel, plain, declined)
"""
    made: Callable[..., Tensor] = define(source, contract.op, f"ops.{contract.op}", {**_NAMES, **parts.names, **names})
    made.__doc__ = contract.document()
    made.__module__ = "portakernel.ops"
    return made


def make_bound(contract: Contract, parts: Expressions, names: dict[str, Any]) -> Callable[..., Tensor]:
    """The call of a bound handle: one comparison with the key of the example, then the kernel.

    ``names`` supplies ``expected`` (the key), ``sizes`` (of the fixed dimensions), ``run`` and ``refuse``.
    """
    tensors = [tensor.name for tensor in contract.tensors]
    parameters = [parameter.name for parameter in contract.parameters]
    defaults = [f"{parameter.name}={parameter.default!r}" for parameter in contract.parameters]
    given = ", ".join([*tensors, *parameters])
    sizes, _ = _sizes(contract)
    fixed = [sizes[name] for name in contract.fixed_dims]
    groups = f"({', '.join(tensors)},), ({', '.join(parameters)}{',' if parameters else ''})"
    floats = _floats(contract)
    source = f"""\
def call({", ".join([*tensors, "*", *defaults, "out=None"])}):
    if (
            {plain(contract)}{floats}
    ):
        {"; ".join(parts.shapes)}
        same_sizes = {parts.fit} and ({"".join(f"{size}, " for size in fixed)}) == sizes
        if same_sizes and ({", ".join(parts.parts)},) == expected:
            if out is None:
                return run({given}, None)
            return into({groups}, out)
    return refuse({groups}, out)
"""
    made: Callable[..., Tensor] = define(source, "call", f"bound.{contract.op}", {**_NAMES, **parts.names, **names})
    made.__name__ = made.__qualname__ = f"bound {contract.op}"
    made.__doc__ = contract.document()
    made.__module__ = "portakernel.bound"
    return made
