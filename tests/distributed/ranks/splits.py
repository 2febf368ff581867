"""Every op in its small cases, split along each dimension that an argument has."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from torch.distributed.tensor import DeviceMesh, Partial, Placement, Replicate, Shard
from trial import Outcome, compare

from portakernel.contract import Case, Contract
from portakernel.contracts import own_contracts
from portakernel_kit.conformance.inputs import Inputs, case_parameters, draw_inputs, generator

# elements of all arguments together
_SMALL = 12000
_OF_A_KIND = 3


def dtypes(contract: Contract, case: Case) -> dict[str, str]:
    """The first dtype that each argument accepts."""
    parameters = case_parameters(contract, case, {})
    made = contract.at(parameters)
    found: dict[str, str] = {}
    for name in made.typed:
        first = made.accepted_dtypes(name, found)[0]
        found[name] = str(parameters[name]) if name in parameters else first
    return found


def small_cases(contract: Contract) -> Iterator[tuple[Case, Inputs]]:
    """The first cases of each kind: magnitudes and layouts are the conformance kit's concern."""
    seen: Counter[tuple[object, ...]] = Counter()
    for case in contract.cases:
        kind = (len(case.leading), case.present, *sorted(map(str, case.parameters.items())))
        # a permission to overwrite is not compared
        other = case.values in ("large", "tiny") or case.layouts or case.parameters.get("overwrite_logits")
        if other or seen[kind] == _OF_A_KIND:
            continue
        inputs = draw_inputs(contract, case, dtypes(contract, case), "cpu", generator(0, contract.op, case.name))
        if sum(tensor.numel() for tensor in inputs.given.values()) <= _SMALL:
            seen[kind] += 1
            yield case, inputs


def labels(inputs: Inputs) -> list[tuple[str, int]]:
    """Each leading dimension as ``*M`` with its place, and each other size as its text with -1."""
    found: dict[tuple[str, int], None] = {}
    for tensor in inputs.contract.tensors:
        if tensor.name in inputs.given:
            count = len(inputs.leading) if tensor.leading is not None else 0
            found |= {(f"*{tensor.leading}", place): None for place in range(count)}
            found |= {(text, -1): None for text in tensor.fixed}
    return list(found)


def places(inputs: Inputs, label: tuple[str, int]) -> list[list[Placement]]:
    """Every argument that has the dimension sharded along it, every other one whole."""
    text, place = label
    made: list[list[Placement]] = []
    for argument, tensor in zip(inputs.contract.tensors, inputs.tensors, strict=True):
        dim = None
        if tensor is not None and text == f"*{argument.leading}" and argument.leading is not None:
            dim = place
        elif tensor is not None and text in argument.fixed:
            dim = tensor.ndim - len(argument.fixed) + argument.fixed.index(text)
        made.append([Replicate() if dim is None else Shard(dim)])
    return made


def records(mesh: DeviceMesh) -> list[dict[str, Any]]:
    """What happens in each."""
    found: list[dict[str, Any]] = []
    for op, contract in own_contracts().items():
        for case, inputs in small_cases(contract):
            found += [_record(op, case, inputs, label, mesh, places(inputs, label)) for label in labels(inputs)]
            normal = case.values == "normal" and all(t.numel() for t in inputs.given.values())
            first = inputs.given[inputs.contract.names[0]]
            if normal and first.is_floating_point() and first.dtype.itemsize == 4:
                partial = [[Partial()], *([[Replicate()]] * (len(inputs.tensors) - 1))]
                found.append(_record(op, case, inputs, ("Partial", -1), mesh, partial))
            if normal and inputs.leading and not inputs.contract.choosers:
                rows = places(inputs, (f"*{inputs.contract.tensors[0].leading}", 0))
                moved = [
                    [Shard(0)] if where == [Replicate()] and tensor is not None and tensor.ndim else where
                    for where, tensor in zip(rows, inputs.tensors, strict=True)
                ]
                if moved != rows:
                    found.append(_record(op, case, inputs, ("sharded weights", -1), mesh, moved))
    return found


def on_device(inputs: Inputs, mesh: DeviceMesh) -> Inputs:
    tensors = (None if tensor is None else tensor.to(mesh.device_type) for tensor in inputs.tensors)
    return dataclasses.replace(inputs, tensors=tuple(tensors))


def _record(
    op: str, case: Case, inputs: Inputs, label: tuple[str, int], mesh: DeviceMesh, placements: Sequence[Any]
) -> dict[str, Any]:
    try:
        outcome = compare(op, on_device(inputs, mesh), mesh, placements, backward=case.backward)
    except Exception as error:  # noqa: BLE001 - what went wrong is the record; a rank that dies leaves the others waiting
        outcome = Outcome([], {}, [], [f"{type(error).__name__}: {error}"])
    return {
        "op": op,
        "case": case.name,
        "label": label[0],
        "place": label[1],
        "leading": len(inputs.leading),
        "absent": [name for name in inputs.contract.names if name not in inputs.given],
        "parameters": {name: inputs.parameters[name] for name in own_contracts()[op].choosers},
        "dims": dict(inputs.dims),
        "results": outcome.results,
        "gradients": outcome.gradients,
        "warned": outcome.warned,
        "problems": outcome.problems,
    }
