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
    found = _dtypes(contract, dtypes)
    contract.check_dtypes(found)
    names = [tensor.name for tensor in contract.tensors]
    for name in shapes or {}:
        if name not in names:
            raise UnknownNameError("tensor argument", name, names, where=contract.op)
    if shapes and any(size < 0 for shape in shapes.values() for size in shape):
        raise ArgumentValueError(f"{contract.op}: a dimension is negative in {dict(shapes)}")
    dims, _ = contract.bind_shapes({name: tuple(shape) for name, shape in (shapes or {}).items()})
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


def _dtypes(contract: Contract, given: Mapping[str, str] | str | None) -> dict[str, str]:
    if given is None:
        return {}
    names = [tensor.name for tensor in contract.tensors]
    if not isinstance(given, str):
        for name in given:
            if name not in names:
                raise UnknownNameError("tensor argument", name, names, where=contract.op)
    found: dict[str, str] = {}
    for name in names:
        text = given if isinstance(given, str) else given.get(name)
        accepted = contract.accepted_dtypes(name, found)
        if text is not None:
            dtype = parse_dtype(text).name
            if not isinstance(given, str) or dtype in accepted:
                found[name] = dtype
        elif accepted and accepted[0] in found.values():
            found[name] = accepted[0]  # it follows another argument's
    if not found and isinstance(given, str):
        known = [dtype for tensor in contract.tensors for dtype in tensor.dtypes if dtype in DTYPES]
        raise ArgumentTypeError(f"{contract.op}: no argument can be {given}; {nearest(given, known)}")
    return found


def _features(contract: Contract, given: Mapping[str, float]) -> dict[str, object]:
    known = {parameter.name: parameter for parameter in contract.parameters}
    for name in given:
        if name not in known:
            raise UnknownNameError("parameter", name, known, where=contract.op)
    return {name: value for name, value in given.items() if known[name].feature and value != known[name].default}
