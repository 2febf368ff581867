"""Which claims of a kernel no case that ran has put to the test."""

from __future__ import annotations

from collections.abc import Sequence

from portakernel.claims.capability import Capability
from portakernel.claims.request import format_values
from portakernel.contract import Case, Contract, Parameter, TensorArgument
from portakernel_kit.conformance.claims import DTypes, accepted, dtype_combinations
from portakernel_kit.conformance.inputs import is_present

# a case, and the dtypes that it ran in
Executed = tuple[Case, Sequence[tuple[str, str]]]


def uncovered(
    contract: Contract,
    variants: Sequence[Capability],
    executed: Sequence[Executed],
    *,
    backward: bool,
    together: bool = True,
) -> list[str]:
    """A sentence for each claim of the variants that none of ``executed`` tests.

    ``backward``: whether one ran it. ``together``: whether dtypes have to have run in every combination that is
    claimed, which holds for ops without scale formats and the like; else each has to have run in some.
    """
    if not executed:
        return ["no case of the op runs: everything that is claimed goes unchecked"]
    problems = _combinations(contract, variants, executed) if together and not contract.choosers else []
    if problems:
        return problems
    covered = {pair for _, dtypes in executed for pair in dtypes}
    combined = (c for v in variants for c in dtype_combinations(contract, v) if not _of_several_values(contract, c))
    claimed = {pair for c in combined for pair in c.items()}
    possible = {(name, dtype) for name in contract.typed for dtype in contract.possible_dtypes(name)}
    for name, dtype in sorted(claimed - covered):
        refused = (name, dtype) not in possible
        fault = f"which {contract.op} does not accept" if refused else "and no case runs in it"
        problems.append(f"claims {name}={dtype}, {fault}")
    cases = [case for case, _ in executed]
    problems += [*_formats(contract, variants, cases), *_values(contract, variants, cases)]
    features = frozenset[str]().union(*(variant.features for variant in variants))
    for feature in contract.features:
        if feature.name in features and not any(_asks(case, feature) for case in cases):
            problems.append(f"claims feature {feature.name}, and no case that runs asks for it")
    if any(variant.has_backward for variant in variants) and not backward:
        problems.append("claims a backward, and no case runs it")
    return problems


def _of_several_values(contract: Contract, dtypes: DTypes) -> bool:
    """Whether these dtypes are claimed of what no one call has: each with other values of what dtypes depend on."""
    if not contract.choosers or any(d not in contract.possible_dtypes(name) for name, d in dtypes.items()):
        return False
    return not any(accepted(contract, case, dtypes) for case in contract.cases)


def shared_by_rows(contract: Contract, case: Case) -> list[str]:
    """The results of which, in such a case, several rows have one together: it depends on all of them."""
    made = contract.at(contract.values(case.parameters))
    rows = next((f"*{tensor.leading}" for tensor in made.tensors if tensor.leading), None)
    apart = (isinstance(output.shape, tuple) and output.shape[:1] == (rows,) for output in made.outputs)
    pairs = zip(made.outputs, apart, strict=True)
    return [output.name for output, alone in pairs if rows is not None and not alone]


def _combinations(contract: Contract, variants: Sequence[Capability], executed: Sequence[Executed]) -> list[str]:
    """The combinations of dtypes, of arguments that every call has, that are claimed and in which no case runs."""
    names = [t.name for t in contract.tensors if not t.optional]
    covered = {tuple(dict(dtypes)[name] for name in names) for _, dtypes in executed}
    claimed = {tuple(c[n] for n in names): None for v in variants for c in dtype_combinations(contract, v)}
    problems = []
    for picked in claimed:
        if picked not in covered:
            known = dict(zip(names, picked, strict=True))
            fault = (
                "and no case runs in it" if accepted(contract, None, known) else f"which {contract.op} does not accept"
            )
            problems.append(f"claims {', '.join(f'{name}={dtype}' for name, dtype in known.items())}, {fault}")
    return problems


def _asks(case: Case, feature: Parameter | TensorArgument) -> bool:
    if isinstance(feature, TensorArgument):
        return is_present(feature, case)
    return bool(case.parameters.get(feature.name, feature.default) != feature.default)


def _formats(contract: Contract, variants: Sequence[Capability], cases: Sequence[Case]) -> list[str]:
    """The scale formats that are claimed, and that no case runs in."""
    run = [format_values(contract, contract.values(case.parameters)) for case in cases]
    claimed = {(name, f) for v in variants for name, formats in v.formats.items() for f in formats}
    missing = sorted(claimed - {pair for formats in run for pair in formats.items()})
    return [f"claims {name} with {scale_format} scales, and no case runs in it" for name, scale_format in missing]


def _values(contract: Contract, variants: Sequence[Capability], cases: Sequence[Case]) -> list[str]:
    """The values of keyword arguments that are claimed, and that no case runs with."""
    run = [contract.values(case.parameters) for case in cases]
    claimed = {(name, value) for v in variants for name, values in v.values.items() for value in values}
    missing = sorted(f"{name}={v!r}" for name, v in claimed if all(values[name] != v for values in run))
    return [f"claims {claim}, and no case runs with it" for claim in missing]
