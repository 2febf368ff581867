"""A request from a question (an op, a target, dtypes, shapes) instead of from tensors; no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from portakernel.contract import Contract
from portakernel.dtypes import DTYPES, parse_dtype
from portakernel.errors import ArgumentTypeError, ArgumentValueError, UnknownNameError, nearest
from portakernel.request import Phase, Request, asked_features, format_values, typed_values
from portakernel.target import Device, Target


def ask(
    contract: Contract,
    target: Target,
    *,
    dtypes: Mapping[str, str] | str | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    formats: Mapping[str, str] | str | None = None,
    values: Mapping[str, object] | None = None,
    phase: Phase = Phase.INFERENCE,
    device: Device | None = None,
    attached: tuple[Device, ...] = (),
) -> Request:
    """The request that the question makes; tensors are taken to be contiguous.

    One dtype for all means: every argument that the op lets have it; one scale format for all likewise. An argument
    whose dtype follows another's, or can be but one, need not be given. Optional tensors are absent unless something is
    said of them.

    Raises:
        UnknownNameError: an argument, dtype, format or parameter that does not exist.
        ArgumentTypeError, ArgumentValueError: dtypes or shapes that the op does not accept together.
    """
    shapes = _shapes(contract, shapes)
    given = {name: contract.value(name, value) for name, value in (values or {}).items()}
    known = contract.values(_formats(contract, formats) | given)
    made = contract.at(known)
    found = _dtypes(made, dtypes, shapes, known)
    made.check_dtypes(found)
    present = [t.name for t in contract.tensors if not t.optional or t.name in shapes or t.name in found]
    dims, _ = made.bind_shapes(shapes)
    facts: dict[str, int] = {}
    for name in present:
        facts |= {
            f"{name}.contiguous": True,
            f"{name}.flat_rows": True,
            f"{name}.stride_last": 1,
            f"{name}.alignment": 16,
        }
    return Request(
        op=contract.op,
        target=target,
        dtypes=found,
        dims=dims,
        facts=facts,
        features=asked_features(contract, known, present),
        formats=format_values(contract, known),
        values=known,
        absent=frozenset(contract.names).difference(present),
        phase=phase,
        saved=tuple(saved.name for saved in made.saved),
        device=device,
        attached=attached,
    )


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
    for name in given:
        if name not in holders:
            raise UnknownNameError("tensor with a scale format", str(name), holders, where=contract.op)
    return {holders[name].name: holders[name].canonical(contract.op, value) for name, value in given.items()}


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
    contract: Contract, given: object, shapes: Mapping[str, object], values: Mapping[str, Any]
) -> dict[str, str]:
    found = typed_values(contract, values)
    if given is None:
        return found
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
        accepted = contract.accepted_dtypes(name, found)
        if asked.get(name) is not None:
            dtype = parse_dtype(asked[name]).name
            if not for_all or dtype in accepted:
                found[name], fitted = dtype, True
                continue
        if name in found or name in optional:
            continue
        # it follows another argument's, or there is but one that it can have
        if accepted and (accepted[0] in found.values() or len(accepted) == 1) and accepted[0] in DTYPES:
            found[name] = accepted[0]
    if not fitted and for_all:
        known = [dtype for name in contract.names for dtype in contract.possible_dtypes(name)]
        raise ArgumentTypeError(f"{contract.op}: no argument can be {given}; {nearest(str(given), known)}")
    return found
