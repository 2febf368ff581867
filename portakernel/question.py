"""A request from a question (an op, a target, dtypes, shapes) instead of from tensors; no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from portakernel.contract import Contract
from portakernel.dtypes import DTYPES, parse_dtype
from portakernel.errors import ArgumentTypeError, ArgumentValueError, UnknownNameError, nearest
from portakernel.request import Phase, Request
from portakernel.target import Device, Target


def ask(
    contract: Contract,
    target: Target,
    *,
    dtypes: Mapping[str, str] | str | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    features: Mapping[str, float] | None = None,
    phase: Phase = Phase.INFERENCE,
    device: Device | None = None,
    attached: tuple[Device, ...] = (),
) -> Request:
    """The request that the question makes; tensors are taken to be contiguous.

    One dtype for all means: every argument that the op lets have it. An argument whose dtype follows another's need not
    be given.

    Raises:
        UnknownNameError: an argument, dtype or feature that does not exist.
        ArgumentTypeError, ArgumentValueError: dtypes or shapes that the op does not accept together.
    """
    shapes = _shapes(contract, shapes)
    found = _dtypes(contract, dtypes)
    contract.check_dtypes(found)
    names = [tensor.name for tensor in contract.tensors]
    dims, _ = contract.bind_shapes(shapes)
    facts: dict[str, int] = {}
    for name in names:
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
        features=_features(contract, features or {}),
        phase=phase,
        saved=tuple(saved.name for saved in contract.saved),
        device=device,
        attached=attached,
    )


def _shapes(contract: Contract, given: object) -> dict[str, tuple[int, ...]]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ArgumentTypeError(
            f"{contract.op}: shapes are given by argument, such as {{'x': (4, 8)}}; this is {given!r}"
        )
    names = [tensor.name for tensor in contract.tensors]
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


def _dtypes(contract: Contract, given: object) -> dict[str, str]:
    if given is None:
        return {}
    names = [tensor.name for tensor in contract.tensors]
    for_all = isinstance(given, str)
    if not for_all and not isinstance(given, Mapping):
        accepted_forms = "a name for all arguments, or a name for each in a dict"
        raise ArgumentTypeError(f"{contract.op}: dtype is {accepted_forms}; this is {given!r}")
    asked: Mapping[str, object] = given if isinstance(given, Mapping) else dict.fromkeys(names, given)
    for name in asked:
        if name not in names:
            raise UnknownNameError("tensor argument", name, names, where=contract.op)
    found: dict[str, str] = {}
    for name in names:
        accepted = contract.accepted_dtypes(name, found)
        if asked.get(name) is not None:
            dtype = parse_dtype(asked[name]).name
            if not for_all or dtype in accepted:
                found[name] = dtype
        elif accepted and accepted[0] in found.values():
            found[name] = accepted[0]  # it follows another argument's
    if not found and for_all:
        known = [dtype for tensor in contract.tensors for dtype in tensor.dtypes if dtype in DTYPES]
        raise ArgumentTypeError(f"{contract.op}: no argument can be {given}; {nearest(str(given), known)}")
    return found


def _features(contract: Contract, given: Mapping[str, float]) -> dict[str, object]:
    numbers = {name: contract.number(name, value) for name, value in given.items()}
    neutral = {feature.name: feature.default for feature in contract.features}
    return {name: value for name, value in numbers.items() if name in neutral and value != neutral[name]}
