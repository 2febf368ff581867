"""Generates each op's public function and its bound handle from its contract.

Generated, because a loop over arguments costs more than the whole dispatch may: the code is what one would write by
hand for each op.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from portakernel.capability import CannotRun
from portakernel.contract import Contract
from portakernel.document import arguments, document
from portakernel.dtypes import DTYPES
from portakernel.guard_key import Expressions, Keys, define, dimension_sources, unless_none
from portakernel.torch_internals import (
    any_autocast,
    dispatch_modes,
    forward_ad,
    function_modes,
    innermost_transform,
    jit_trace,
    only_device_contexts,
)

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
    "torch_dtype": torch.dtype,
    "dtype_names": {getattr(torch, name): name for name in DTYPES if hasattr(torch, name)},
}


def plain(contract: Contract) -> str:
    """An expression that is true when the arguments' memory may be read as it is."""

    def each(condition: str) -> list[str]:
        # `#` stands for the tensor
        made = [(tensor, condition.replace("#", tensor.name)) for tensor in contract.tensors]
        return [f"({t.name} is None or {text})" if t.optional else text for t, text in made]

    requires_grad = [unless_none(tensor, f"{tensor.name}.requires_grad", "False") for tensor in contract.tensors]
    terms = [*each("(type(#) is Tensor or type(#) is Parameter)"), *each("#.layout is strided")]
    terms.append(f"not (grad_enabled() and ({' or '.join(requires_grad)}))")
    terms += ["transforms() is None", "not dispatch_modes()", "jit_trace() is None"]
    terms.append("(not function_modes() or only_device_contexts())")
    terms += ["forward_ad._current_level < 0", "not autocast()"]
    terms += each("(not #.is_neg() and not #._is_zerotensor())")
    return "\n            and ".join(terms)


def _canonical(contract: Contract) -> tuple[str, dict[str, Any]]:
    """A further term: parameters in their canonical form; any other is converted on the slow path."""
    terms, names = list[str](), dict[str, Any]()
    for parameter in contract.parameters:
        name, kind = parameter.name, parameter.kind
        if kind in ("text", "dtype", "format"):
            names[f"words_{name}"] = frozenset(parameter.choices)
            term = f"(type({name}) is str and {name} in words_{name})"
        elif kind == "window":
            term = f"(type({name}) is tuple and len({name}) == 2 and {name}[0].__class__ is {name}[1].__class__ is int"
            term += f" and {name}[0] >= -1 and {name}[1] >= -1)"
        else:
            term = f"type({name}) is {kind}"
        terms.append(f"({name} is None or {term})" if parameter.optional else term)
    return "".join(f" and {term}" for term in terms), names


def _groups(contract: Contract) -> tuple[str, str]:
    """All arguments in a row, and as a tuple of tensors and one of parameters."""
    parameters = [parameter.name for parameter in contract.parameters]
    tensors = ", ".join(contract.names)
    return ", ".join(
        [*contract.names, *parameters]
    ), f"({tensors},), ({', '.join(parameters)}{',' if parameters else ''})"


def _named_dtypes(contract: Contract) -> str:
    """Lines that put names in the place of torch's dtypes."""
    holders = [parameter.name for parameter in contract.parameters if parameter.kind == "dtype"]
    return "".join(
        f"    if type({name}) is torch_dtype: {name} = dtype_names.get({name}, {name})\n" for name in holders
    )


def make_public(contract: Contract, parts: Expressions | Keys, names: dict[str, Any]) -> Callable[..., Any]:
    """The function that ``portakernel.ops`` offers.

    ``names`` supplies ``table``, ``context`` (the context variable's getter), ``dispatcher``, ``slow`` and ``traced``.
    """
    given, groups = _groups(contract)
    canonical, words = _canonical(contract)
    if isinstance(parts, Keys):
        lookup = f"key = keys[{', '.join(contract.choosers)},]({given})"
        fit, key, found = "key is not None", "*key", {"keys": parts}
    else:
        lookup = "; ".join(parts.shapes)
        fit, key, found = parts.fit, ", ".join(parts.parts), parts.names
    source = f"""\
def {contract.op}({", ".join(arguments(contract, "out=None", "kernel=None"))}):
{_named_dtypes(contract)}    if compiling():
        return traced({given}, out, kernel)
    plain = (
            {plain(contract)}
    )
    declined = None
    if plain and out is None and kernel is None{canonical}:
        {lookup}
        if {fit}:
            policy = dispatcher.policy() if context() else dispatcher.process_policy
            placement = table.get(({key}, policy))
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
    made: Callable[..., Any] = define(source, contract.op, f"ops.{contract.op}", {**_NAMES, **words, **found, **names})
    made.__doc__ = document(contract)
    made.__module__ = "portakernel.ops"
    return made


def make_bound(contract: Contract, parts: Expressions, names: dict[str, Any]) -> Callable[..., Any]:
    """The call of a bound handle: one comparison with the key of the example, then the kernel.

    ``contract`` is the example's, without open choices. ``names`` supplies ``expected`` (the key), ``sizes`` (of the
    fixed dimensions), ``run`` and ``refuse``.
    """
    given, groups = _groups(contract)
    canonical, words = _canonical(contract)
    sizes, _ = dimension_sources(contract)
    fixed = [sizes[name] for name in contract.fixed_dims if name in sizes]
    source = f"""\
def call({", ".join(arguments(contract, "out=None"))}):
{_named_dtypes(contract)}    if (
            {plain(contract)}{canonical}
    ):
        {"; ".join(parts.shapes)}
        same_sizes = {parts.fit} and ({"".join(f"{size}, " for size in fixed)}) == sizes
        if same_sizes and ({", ".join(parts.parts)},) == expected:
            if out is None:
                return run({given}, None)
            return into({groups}, out)
    return refuse({groups}, out)
"""
    made: Callable[..., Any] = define(
        source, "call", f"bound.{contract.op}", {**_NAMES, **words, **parts.names, **names}
    )
    made.__name__ = made.__qualname__ = f"bound {contract.op}"
    made.__doc__ = document(contract)
    made.__module__ = "portakernel.bound"
    return made
