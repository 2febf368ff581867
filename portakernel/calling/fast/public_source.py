"""Generates each op's public function from its contract.

Generated, because a loop over arguments costs more than the whole dispatch may: the code is what one would write by
hand for each op.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from portakernel.calling.fast.expressions import Expressions, unless_none
from portakernel.calling.fast.forms import Forms, Signatures
from portakernel.calling.fast.generated import define
from portakernel.calling.fast.key_layout import PHASES, PLAIN, TRAINING, key_source
from portakernel.calling.fast.keys import Keys
from portakernel.claims.capability import CannotRun
from portakernel.contract import Contract
from portakernel.contract.near_misses import NOT_GIVEN
from portakernel.contract.parameter import LARGEST, Parameter
from portakernel.contract.signature_text import arguments, document, outs
from portakernel.tensors.layout import has_plain_memory
from portakernel.tensors.torch_internals import (
    any_autocast,
    dispatch_modes,
    forward_ad,
    function_modes,
    has_torch_function,
    innermost_transform,
    jit_trace,
    only_device_contexts,
    profiler,
)
from portakernel.words.dtypes import DTYPES
from portakernel.words.masks import MASKS

# What generated code calls.
GLOBALS: dict[str, Any] = {
    "_has_plain_memory": has_plain_memory,
    "_CannotRun": CannotRun,
    **PHASES,
    "_grad_enabled": torch.is_grad_enabled,
    "_transforms": innermost_transform,
    "_dispatch_modes": dispatch_modes,
    "_function_modes": function_modes,
    "_has_torch_function": has_torch_function,
    "_only_device_contexts": only_device_contexts,
    "_jit_trace": jit_trace,
    "_forward_ad": forward_ad,
    "_profiler": profiler,
    "_autocast": any_autocast,
    "_compiling": torch.compiler.is_dynamo_compiling,
    "_torch_dtype": torch.dtype,
    "inf": math.inf,
    "nan": math.nan,
    "_dtype_names": {getattr(torch, name): name for name in DTYPES if hasattr(torch, name)},
}

# What a form's check does not see: some dispatch modes, and the level of forward-mode duals.
OUTSIDE = "not _dispatch_modes() and _forward_ad._current_level < 0"


def make_plain(contract: Contract, ranks: str = "True") -> Callable[..., bool]:
    """``plain(*tensors)``: whether the arguments' memory may be read as it is, and their ranks are right.

    Everything else goes through torch's dispatcher: a kernel that reads memory would lose a tangent, or read what is
    not there. Gradients are another question, which a form's ``leaf`` answers.
    """

    def each(condition: str) -> list[str]:
        # `#` stands for the tensor
        made = [(tensor, condition.replace("#", tensor.name)) for tensor in contract.tensors]
        return [f"({t.name} is None or {text})" if t.optional else text for t, text in made]

    terms = each("_has_plain_memory(#)")
    terms += ["_transforms() is None", "_jit_trace() is None", "not _autocast()", OUTSIDE]
    terms.append("(not _function_modes() or _only_device_contexts())")
    shapes = "; ".join(f"_s_{t.name} = {unless_none(t, f'{t.name}.shape', 'None')}" for t in contract.tensors)
    source = f"""\
def plain({", ".join(contract.names)}):
    if not (
            {(chr(10) + " " * 12 + "and ").join(terms)}
    ):
        return False
    {shapes}
    return {ranks}
"""
    made: Callable[..., bool] = define(source, "plain", f"{contract.op}.plain", GLOBALS)
    return made


def ours(contract: Contract, *more: str) -> str:
    """An expression that is true when torch's functions are not overridden, and no tensor is nested.

    A form's check must not meet a nested tensor, and a tensor that overrides torch's functions would notice the check.
    """
    overridden = f"_has_torch_function({', '.join([*contract.names, *more])})"
    plain = f"(not {overridden} or (_function_modes() and _only_device_contexts()))"
    return f"{plain} and not ({nested(contract, *more)})"


def nested(contract: Contract, *more: str, held: Collection[str] = ()) -> str:
    """An expression that is true when some tensor is nested; it raises AttributeError for what is no tensor.

    For each name in ``held`` the source knows a dense tensor ``held_<name>``, which needs no check.
    """
    terms = [f"{name}.is_nested" for name in more]
    for tensor in contract.tensors:
        asked = [f"{tensor.name} is not None"] if tensor.optional else []
        asked += [f"{tensor.name} is not _held_{tensor.name}"] if tensor.name in held else []
        terms.append(f"({' and '.join([*asked, f'{tensor.name}.is_nested'])})")
    return " or ".join(terms)


def canonical_terms(contract: Contract) -> tuple[str, dict[str, Any]]:
    """A further term: parameters in their canonical form; any other is converted on the slow path."""
    terms, names = list[str](), dict[str, Any]()
    for parameter in contract.parameters:
        name, kind = parameter.name, parameter.kind
        if kind in ("text", "dtype", "format"):
            names[f"_words_{name}"] = frozenset(parameter.choices)
            term = f"(type({name}) is str and {name} in _words_{name})"
        elif kind == "int" and parameter.choices:
            names[f"_words_{name}"] = frozenset(parameter.choices)
            term = f"(type({name}) is int and {name} in _words_{name})"
        elif kind == "window":
            term = f"(type({name}) is tuple and len({name}) == 2 and {name}[0].__class__ is {name}[1].__class__ is int"
            term += f" and -1 <= {name}[0] <= {LARGEST} and -1 <= {name}[1] <= {LARGEST})"
        elif kind == "mask":
            names[f"_words_{name}"] = MASKS  # it grows
            term = f"(type({name}) is str and {name} in _words_{name})"
        else:
            # most calls leave a parameter out: then it is the default itself, which `know_defaults` makes quick to see
            names[f"_default_{name}"] = parameter.default
            given = f"type({name}) is {kind}{_within(parameter)}"
            term = given if parameter.is_required else f"({name} is _default_{name} or {given})"
        terms.append(f"({name} is None or {term})" if parameter.optional else term)
    return "".join(f" and {term}" for term in terms), names


def _within(parameter: Parameter) -> str:
    """A further term: the number is one that the parameter may be. NaN compares false with everything."""
    if parameter.kind == "int":
        least = 0 if parameter.bounds else int(max(parameter.least, -LARGEST - 1))
        return f" and {least} <= {parameter.name} <= {LARGEST}"
    if parameter.kind != "float":
        return ""
    low = f"{parameter.least!r} <=" if math.isfinite(parameter.least) else "-inf <"
    high = f"<= {parameter.most!r}" if math.isfinite(parameter.most) else "< inf"
    return f" and {low} {parameter.name} {high}"


def know_defaults(made: Callable[..., Any]) -> None:
    """Puts the generated function's own default objects where ``canonical_terms`` compares with them."""
    function: Any = made
    code, defaults = function.__code__, function.__defaults__ or ()
    positional = code.co_varnames[: code.co_argcount][code.co_argcount - len(defaults) :]
    known = {**dict(zip(positional, defaults, strict=True)), **(function.__kwdefaults__ or {})}
    function.__globals__.update({f"_default_{name}": value for name, value in known.items()})


def groups_of(contract: Contract) -> tuple[str, str]:
    """All arguments in a row, and as a tuple of tensors and one of parameters."""
    parameters = [parameter.name for parameter in contract.parameters]
    tensors = ", ".join(contract.names)
    return ", ".join(
        [*contract.names, *parameters]
    ), f"({tensors},), ({', '.join(parameters)}{',' if parameters else ''})"


def named_dtypes(contract: Contract) -> str:
    """Lines that put names in the place of torch's dtypes."""
    holders = [parameter.name for parameter in contract.parameters if parameter.kind == "dtype"]
    return "".join(
        f"    if type({name}) is _torch_dtype: {name} = _dtype_names.get({name}, {name})\n" for name in holders
    )


@dataclass(frozen=True, slots=True)
class Lookup:
    """The look-up of a key as code: ``lines`` to run, whether the arguments ``fit``, the ``key``'s parts."""

    lines: str
    fit: str
    key: str
    names: dict[str, Any]
    forms: Forms

    @classmethod
    def of(cls, contract: Contract, parts: Expressions | Keys, signatures: Signatures) -> Lookup:
        """The look-up for an op's calls; its forms are shared by all code that is made with it."""
        if not isinstance(parts, Keys):
            key = "".join(f"{part}, " for part in parts.parts)
            forms = Forms(make_plain(contract, parts.ranks), signatures)
            return cls("; ".join([*parts.shapes, parts.judged]), "_sized", key, parts.names, forms)
        lines = f"_key = _keys[{', '.join(contract.choosers)},]({groups_of(contract)[0]})"
        return cls(lines, "_key is not None", "*_key, ", {"_keys": parts}, Forms(make_plain(contract), signatures))


def make_public(contract: Contract, lookup: Lookup, names: dict[str, Any]) -> Callable[..., Any]:
    """The function that ``portakernel.ops`` offers.

    ``names`` supplies ``_table``, ``_context`` (the context variable's getter), ``_dispatcher``, ``_pinned`` (policies
    with a strict ``kernel``), ``_into``, ``_train``, ``_slow``, ``_traced`` and ``_otherwise``, which takes arguments
    that the op has not.
    """
    given, groups = groups_of(contract)
    canonical, words = canonical_terms(contract)
    tensors = ", ".join(contract.names)
    strict = arguments(contract, *outs(contract), "kernel=None")
    no_out = "" if contract.outputs else "    out = None\n"
    source = f"""\
def {contract.op}({", ".join(_tolerant(strict))}):
{no_out}    if _unknown or _keywords_only is not ...:
        if not (_compiling() and _unknown == {{"copy": False}} and _keywords_only is ...):  # there are no arrays
            return _otherwise({groups}, out, kernel, _unknown, _keywords_only)
{named_dtypes(contract)}    if _compiling():
        return _traced({given}, out, kernel)
    if out is not None and (_written := _into({given}, out, kernel)) is not None:
        return _written
    _form, _declined, _plain, _trained = _forms.latest, None, False, False
    try:
        _ours = {ours(contract)}
    except AttributeError:
        _ours = False  # no tensor: `_slow` refuses it
    if _ours and (_form.check({tensors}) or (_form := _forms.find({tensors})) is not None) and {OUTSIDE}:
        _trained = _form.leaf and _grad_enabled()
        _plain = not _trained
        if out is None{canonical}:
            {lookup.lines}
            if {lookup.fit}:
                _policy = _dispatcher.policy() if _context() else _dispatcher.process_policy
                if kernel is not None:
                    _policy = _pinned.get((kernel, _policy)) if type(kernel) is str else None
                if _plain:
                    _placement = _table.get({key_source(lookup.key, PLAIN)})
                    if _placement is not None:
                        try:
                            if _profiler._is_profiler_enabled:
                                _result = _placement.profiled({given}, None)
                            else:
                                _result = _placement.run({given}, None)
                        except _CannotRun as _error:
                            _declined = _placement, _error  # `_slow` takes the next kernel and remembers
                        else:
                            next(_placement.calls)
                            return _result
                else:
                    _placement = _table.get({key_source(lookup.key, TRAINING)})
                    if _placement is not None and (_result := _train(_placement, {groups})) is not None:
                        return _result
    return _slow({groups}, out, kernel, _plain, _trained, _declined)
"""
    names = {**GLOBALS, **words, **lookup.names, **names, "_forms": lookup.forms, "_NOT_GIVEN": NOT_GIVEN}
    made: Any = define(source, contract.op, f"ops.{contract.op}", names, compiles=True)
    know_defaults(made)
    made.__doc__ = document(contract)
    made.__module__ = "portakernel.ops"
    made.__signature__ = inspect.signature(define(f"def shown({', '.join(strict)}): ...", "shown", "signature", {}))
    function: Callable[..., Any] = made
    return function


def _tolerant(strict: Sequence[str]) -> list[str]:
    """Arguments that take any call, so that its mistakes get an answer: what is by position, then what is by name.

    Python fills in a default for a positional argument faster than for one by name alone; what that saves pays for the
    ``**_unknown``. None stands for a parameter that was not given.
    """
    place = strict.index("*")
    positional = [text if "=" in text else f"{text}=_NOT_GIVEN" for text in strict[:place]]
    by_name = [text if "=" in text else f"{text}=None" for text in strict[place + 1 :]]
    return [*positional, "_keywords_only=...", *by_name, "**_unknown"]
