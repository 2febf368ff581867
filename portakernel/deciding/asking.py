"""A request from a question (an op, a target, dtypes, shapes) instead of from tensors; no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from portakernel.claims.request import PLAIN_FACTS, Phase, Request, asked_features, format_values, typed_values
from portakernel.contract import Contract
from portakernel.contract.format_advice import in_words
from portakernel.errors import ArgumentTypeError, ArgumentValueError, UnknownNameError
from portakernel.words.dtypes import DTYPES, FLOAT64, parse_dtype
from portakernel.words.target import Device, Target


def ask(
    contract: Contract,
    target: Target,
    *,
    dtypes: Mapping[str, str] | str | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    formats: Mapping[str, str] | str | None = None,
    values: Mapping[str, object] | None = None,
    phase: Phase = Phase.INFERENCE,
    facts: Mapping[str, int] | None = None,
    saved_by: str | None = None,
    device: Device | None = None,
    attached: tuple[Device, ...] = (),
) -> Request:
    """The request that the question makes; tensors are taken to be contiguous, but for what ``facts`` say.

    One dtype for all means: every argument that the op lets have it; one scale format for all likewise. An argument
    whose dtype follows another's, or can be but one, need not be given. A parameter that holds a dtype or a scale
    format may stand among ``dtypes`` or ``formats`` too, under its own name. Optional tensors are absent unless
    something is said of them.

    Raises:
        UnknownNameError: an argument, dtype, format, fact or parameter that does not exist.
        ArgumentTypeError, ArgumentValueError: dtypes or shapes that the op does not accept together.
    """
    shapes = _shapes(contract, shapes)
    given = {name: contract.value(name, value) for name, value in (values or {}).items()}
    for own in (_formats(contract, formats), _own_dtypes(contract, dtypes)):
        for name, value in own.items():
            if given.setdefault(name, value) != value:
                raise ArgumentValueError(f"{contract.op}: {name} is given twice: {value} and {given[name]}")
    known = contract.values(given)
    made = contract.at(known)
    _check_format(contract, made, dtypes)
    typed = _dtypes(contract, made, dtypes, shapes, known)
    made.check_dtypes(typed, contract)
    present = [t.name for t in contract.tensors if not t.optional or t.name in shapes or t.name in typed]
    dims, _ = made.bind_shapes(shapes, known)
    plain = {f"{name}.{fact}": value for name in present for fact, value in PLAIN_FACTS.items()}
    for name in facts or ():
        if name not in plain:
            raise UnknownNameError("layout fact", name, plain, where=contract.op)
    return Request(
        op=contract.op,
        target=target,
        dtypes=typed,
        dims=dims,
        facts={**plain, **(facts or {})},
        features=asked_features(contract, known, present),
        formats=format_values(contract, known),
        values=known,
        absent=frozenset(contract.names).difference(present),
        phase=phase,
        saved=tuple(saved.name for saved in made.saved),
        saved_by=saved_by,
        device=device,
        attached=attached,
    )


def _check_format(contract: Contract, made: Contract, given: object) -> None:
    """Nothing, unless one dtype for all goes past the arguments that it is meant for, because of their scale format.

    Raises:
        ArgumentTypeError: elements would have it in another format, and here scales alone can.
    """
    if not isinstance(given, str):
        return
    dtype = parse_dtype(given).name
    needed = [tensor.name for tensor in made.tensors if not tensor.optional]
    kept = [name for name in needed if dtype in made.possible_dtypes(name)]
    barred = [name for name in needed if name not in kept and dtype in contract.possible_dtypes(name)]
    if kept and barred[:1] == needed[:1]:  # where scales alone cannot have it, they have their own
        accepted = made.possible_dtypes(barred[0])
        raise ArgumentTypeError(
            f"{contract.op}: {_listed(barred)} cannot be {dtype} in this scale format, but {_listed(accepted, 'or')};"
            f" give another format, or the dtypes by name, as in {{{barred[0]!r}: {accepted[0]!r}}}"
        )


def _own_dtypes(contract: Contract, given: object) -> dict[str, object]:
    """The values of the parameters that hold a dtype, where dtypes by name say them."""
    if not isinstance(given, Mapping):
        return {}
    return {p.name: p.canonical(contract.op, given[p.name]) for p in contract.parameters if p.name in given}


def _formats(contract: Contract, given: object) -> dict[str, object]:
    """The values of the parameters that hold scale formats, from formats by tensor or one for all."""
    holders = {p.of or p.name: p for p in contract.parameters if p.kind == "format"}
    if given is None:
        return {}
    if not holders:
        raise ArgumentValueError(f"{contract.op}: none of its tensors has a scale format")
    if isinstance(given, str):
        given = dict.fromkeys(holders, given)
    if not isinstance(given, Mapping):
        raise ArgumentTypeError(
            f"{contract.op}: format is a name for all tensors, or a name for each in a dict; this is {given!r}"
        )
    by_own_name = {holder.name: holder for holder in holders.values()}
    for name in given:
        if name not in holders and name not in by_own_name:
            raise UnknownNameError("tensor with a scale format", str(name), holders, where=contract.op)
    holders = by_own_name | holders
    by_parameter: dict[str, object] = {}
    for name, asked in given.items():
        holder = holders[name]
        value = holder.canonical(contract.op, asked)
        if by_parameter.setdefault(holder.name, value) != value:
            raise ArgumentValueError(
                f"{contract.op}: {holder.name} is given twice: {by_parameter[holder.name]} and {value}"
            )
    return by_parameter


def _shapes(contract: Contract, given: object) -> dict[str, tuple[int, ...]]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ArgumentTypeError(
            f"{contract.op}: shapes are given by argument, such as {{'x': (4, 8)}}; this is {given!r}"
        )
    names = contract.names
    for name, shape in given.items():
        if name not in names:
            raise UnknownNameError("tensor argument", name, names, where=contract.op)
        sizes = isinstance(shape, (tuple, list)) and all(type(size) is int for size in shape)
        if not sizes:
            raise ArgumentTypeError(
                f"{contract.op}: the shape of {name} must be a tuple of integers; this is {shape!r}"
            )
    if any(size < 0 for shape in given.values() for size in shape):
        raise ArgumentValueError(f"{contract.op}: a dimension is negative in {dict(given)}")
    return {name: tuple(shape) for name, shape in given.items()}


def _dtypes(
    whole: Contract, contract: Contract, given: object, shapes: Mapping[str, object], values: Mapping[str, Any]
) -> dict[str, str]:
    typed = typed_values(contract, values)
    if given is None:
        return typed
    names = contract.typed
    for_all = isinstance(given, str)
    if not for_all and not isinstance(given, Mapping):
        accepted_forms = "a name for all arguments, or a name for each in a dict"
        raise ArgumentTypeError(f"{contract.op}: dtype is {accepted_forms}; this is {given!r}")
    asked: Mapping[str, object] = given if isinstance(given, Mapping) else dict.fromkeys(contract.names, given)
    for name in asked:
        if name not in names:
            raise UnknownNameError("tensor argument", name, names, where=contract.op)
    optional = {tensor.name for tensor in contract.tensors if tensor.optional}
    fitted = False
    for name in names:
        if for_all and name in optional and name not in shapes:
            continue
        accepted = contract.accepted_dtypes(name, typed)
        if asked.get(name) is not None:
            dtype = parse_dtype(asked[name]).name
            if not for_all or dtype in accepted or (dtype == FLOAT64 and name == contract.in_float64):
                typed[name], fitted = dtype, True
                continue
        if name in typed or name in optional:
            continue
        # it follows another argument's, or there is but one that it can have
        if accepted and (accepted[0] in typed.values() or len(accepted) == 1) and accepted[0] in DTYPES:
            typed[name] = accepted[0]
    if not fitted and for_all:
        raise ArgumentTypeError(unfit(whole, contract, parse_dtype(given).name, shapes))
    return typed


def unfit(whole: Contract, contract: Contract, dtype: str, shapes: Mapping[str, object]) -> str:
    """The complaint that none of the asked arguments can have ``dtype``: what these take, and where it does belong.

    ``contract`` is that of such calls, ``whole`` the op's before its choices were made.
    """
    asked = [tensor.name for tensor in contract.tensors if not tensor.optional or tensor.name in shapes]
    by_dtypes: dict[tuple[str, ...], list[str]] = {}
    for name in asked:
        by_dtypes.setdefault(contract.possible_dtypes(name), []).append(name)
    takes = "; ".join(f"{_listed(names)} can be {_listed(dtypes, 'or')}" for dtypes, names in by_dtypes.items())
    others = [name for name in contract.typed if name not in asked and dtype in contract.possible_dtypes(name)]
    where = f". {_listed(others)} can: by name, as in {{{others[0]!r}: {dtype!r}}}" if others else ""
    return f"{contract.op}: {_listed(asked)} cannot be {dtype}; {takes}{where}{in_words(whole, dtype, asked)}"


def _listed(names: Sequence[str], word: str = "and") -> str:
    *most, last = names
    return f"{', '.join(most)} {word} {last}" if most else last
