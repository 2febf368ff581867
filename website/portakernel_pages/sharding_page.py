"""``docs/sharding.md``: what each op does with DTensors, from the rules that calls follow."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from portakernel.contract import Contract
from portakernel.contract.parameter import Parameter
from portakernel.contracts import own_contracts
from portakernel.torch_bridge.sharding_rules import Axis, axes, row_name

# What other modes do with DTensors. Outcomes are `works`, or `refuses with` and the error's class.
MODES: Mapping[str, tuple[str, str]] = {
    "gradients": ("works", "an argument that ranks hold whole gets a `Partial` gradient from split calls"),
    "inference mode": ("works", "through `portakernel.ops`"),
    "torch.ops in inference mode": ("refuses with NotImplementedError", "PyTorch's; call `portakernel.ops` there"),
    "out=": ("works", "a DTensor, placed in any way: the result is redistributed into it"),
    "kernel=": ("works", "strict on every rank"),
    "autocast": ("works", "each rank casts its part"),
    "torch.compile": ("works", "`fullgraph=True`, gradients included; the graph names kernels for the local sizes"),
    "FSDP2": ("works", "`fully_shard` gathers parameters before a module's forward: ops see plain tensors"),
    "FSDP2 compiled": ("works", "each module that `fully_shard` wraps is compiled; formulas and calls alike"),
    "second derivatives": (
        "works",
        "PyTorch 2.13 (on 2.11: DerivativeError): the reference is differentiated on each part",
    ),
    "torch.func": ("refuses with ArgumentTypeError", "transform a function of the local tensors"),
    "DTensors beside plain tensors": (
        "refuses with ArgumentTypeError",
        "no rank knows whether the others hold the same",
    ),
    "two meshes": ("refuses with ArgumentValueError", "distribute over one"),
    "outside the mesh": ("refuses with ArgumentValueError", "call on the mesh's ranks alone"),
    "Partial float8": ("refuses with ArgumentValueError", "the dtype has no sum"),
    "explain": ("refuses with ArgumentTypeError", "a rank decides on its part: ask about `to_local()`"),
    "bind": ("refuses with ArgumentTypeError", "a bound kernel reads memory: bind with `to_local()`"),
}

_WHOLE = "nothing: works on whole tensors"
_HEAD = """\
# Sharding

What the ops do with DTensors (`torch.distributed.tensor`). Written by `make generate` from the rules that calls follow.

A call on DTensors gives the numbers of the call on the whole tensors. Where it can be **split**, each rank calls the op
on its own part, which is also what kernels are chosen for. What stands in the way is **redistributed** first:

- each dimension of the mesh splits along what the first argument that is sharded in a way the op admits is sharded
  along; the other arguments follow (a rank takes its part of what it holds whole, which costs nothing);
- arguments that have no such dimension are replicated (weights), and so is everything where nothing can be split;
- `Partial` arguments are summed.

Moving shards between ranks on each call is warned about once for each op and placement (`RedistributionWarning`).
Uneven and empty parts are fine, except where the table says *evenly*; ranks whose parts differ in size may choose
different kernels, which a policy or `kernel=` prevents.

"""


@dataclass(frozen=True, slots=True)
class Split:
    """A row of the page: along what an op can be split, with which values of its choosers."""

    contract: Contract
    axis: Axis
    values: tuple[Mapping[str, Any], ...]

    def admits(self, values: Mapping[str, Any]) -> bool:
        """Whether a call with these values of the parameters can be split so."""
        return {name: values[name] for name in self.contract.choosers} in self.values


def splits(contract: Contract) -> tuple[Split, ...]:
    """Along what the op can be split when it is given every argument."""
    found: dict[Axis, list[Mapping[str, Any]]] = {}
    for values in _combinations(contract):
        made = contract.at(values)
        for axis in axes(made, 1 if row_name(made) is not None else 0, made.names):
            found.setdefault(axis, []).append(values)
    merged: dict[str, Split] = {}
    for axis, several in found.items():
        known = merged.get(axis.name)
        merged[axis.name] = Split(contract, axis, (*(known.values if known else ()), *several))
    return tuple(merged.values())


def sharding_page() -> str:
    """The whole page."""
    rows = []
    for contract in own_contracts().values():
        several = splits(contract)
        rows += [_row(split) for split in several]
        if not several:
            refuses = "nothing: refuses with ArgumentTypeError; each rank writes its own part (`to_local()`)"
            rows.append((f"`{contract.op}`", refuses if contract.mutated else _WHOLE, "", "", ""))
    modes = [(name, *outcome) for name, outcome in MODES.items()]
    text = _HEAD + "## Ops\n\n"
    text += _table(("op", "splits along", "arguments split so", "whole on every rank", "where"), rows)
    return text + "\n\n## Modes\n\n" + _table(("with", "outcome", ""), modes) + "\n"


def _row(split: Split) -> tuple[str, ...]:
    contract, axis = split.contract, split.axis
    along = f"each of the leading dimensions `{axis.name}`" if axis.name.startswith("*") else f"`{axis.name}`"
    along += ", evenly" if axis.even else ""
    pairs = list(zip(contract.tensors, axis.arguments, strict=True))
    held = ", ".join(_argument(contract, tensor.name, place) for tensor, place in pairs if place is not None)
    whole = ", ".join(f"`{tensor.name}`" for tensor, place in pairs if place is None)
    conditions = [_where(split)] if len(split.values) < len(_combinations(contract)) else []
    for tensor, place in pairs:
        if place is not None and place >= 0 and tensor.optional:
            conditions.append(f"without {tensor.name}: all leading dimensions but the last")
    return f"`{contract.op}`", along, held, whole or "–", "; ".join(conditions) or "always"


def _argument(contract: Contract, name: str, place: int) -> str:
    return f"`{name}`" if place >= 0 else f"`{name}` ({place})"


def _where(split: Split) -> str:
    """The values of the choosers as alternatives; choosers that change nothing are left out."""
    admitted = [dict(values) for values in split.values]
    telling = [name for name in split.contract.choosers if not _is_free(split.contract, admitted, name)]
    first, rest = telling[0], telling[1:]
    groups: dict[str, list[str]] = {}
    for value in dict.fromkeys(values[first] for values in admitted):
        others = []
        for name in rest:
            possible = [v[name] for v in _combinations(split.contract)]
            taken = list(dict.fromkeys(values[name] for values in admitted if values[first] == value))
            if len(taken) < len(set(possible)):
                others.append(f"{name} {' or '.join(map(str, taken))}")
        groups.setdefault(" and ".join(others), []).append(str(value))
    return "; ".join(
        f"{first} {', '.join(several)}" + (f" with {others}" if others else "") for others, several in groups.items()
    )


def _is_free(contract: Contract, admitted: Sequence[Mapping[str, Any]], name: str) -> bool:
    """Whether every value of the chooser is admitted wherever one is."""
    possible = {values[name] for values in _combinations(contract)}
    return all({**values, name: value} in admitted for values in admitted for value in possible)


def _combinations(contract: Contract) -> list[dict[str, Any]]:
    names = contract.choosers
    return [
        dict(zip(names, chosen, strict=True))
        for chosen in itertools.product(*(_possible(contract.parameter(name)) for name in names))
    ]


def _possible(parameter: Parameter) -> tuple[Any, ...]:
    return parameter.possible() or (parameter.default,)


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join(f"| {' | '.join(cell or '–' for cell in line)} |" for line in lines)
