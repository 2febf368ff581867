"""What the plugin claims: each op as its contract has it, less what Inductor cannot compile; no torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from portakernel.contract import Contract
from portakernel.contracts import contracts
from portakernel_plugins.inductor.exclusions import EXCLUDED, Exclusion

_ENTRIES = "portakernel_plugins.inductor.entries"


@dataclass(frozen=True, slots=True)
class _Left:
    """What exclusions leave of an op: the vendors, and whether a dtype or scale format stays."""

    exclusions: tuple[Exclusion, ...]

    def targets(self, claimed: Mapping[str, str]) -> dict[str, str]:
        out = {vendor for e in self.exclusions if not (e.dtypes or e.formats) for vendor in e.vendors or claimed}
        return {vendor: archs for vendor, archs in claimed.items() if vendor not in out}

    def keeps_dtype(self, name: str) -> bool:
        return all(name not in e.dtypes for e in self.exclusions)

    def keeps_format(self, name: str) -> bool:
        return all(name not in e.formats for e in self.exclusions)


# Inductor writes Triton on NVIDIA, AMD and Intel, C++ on CPUs, Metal on Apple's.
_TARGETS: Mapping[str, str] = {"nvidia": "sm_75+", "amd": "any", "intel": "any", "cpu": "any", "apple": "any"}


def entries() -> list[dict[str, Any]]:
    """A ``kernels:`` entry for each op that Inductor can compile somewhere."""
    found = []
    for contract in contracts().values():
        left = _Left(tuple(exclusion for exclusion in EXCLUDED if exclusion.op in ("", contract.op)))
        if targets := left.targets(_TARGETS):
            found.append(_entry(contract, left, targets))
    return found


def _entry(contract: Contract, left: _Left, targets: dict[str, str]) -> dict[str, Any]:
    op = contract.op
    limits: dict[str, Any] = {f"{name}.contiguous": {"in": [True]} for name in contract.names}
    # a launch over no rows is no launch, and Inductor's wrappers do not say so themselves
    limits |= {name: {"min": 1} for name in contract.dims if name not in contract.fixed_dims}
    entry: dict[str, Any] = {
        "op": op,
        "entry": f"{_ENTRIES}:forward_{op}",
        "build": f"{_ENTRIES}:build_{op}",
        "targets": targets,
        "dtypes": {
            name: [dtype for dtype in contract.accepted_dtypes(name, {}) if left.keeps_dtype(dtype)]
            for name in contract.typed
        },
        "formats": {
            parameter.of or parameter.name: [text for text in parameter.choices if left.keeps_format(text)]
            for parameter in contract.parameters
            if parameter.kind == "format"
        },
        "limits": limits,
        "features": [feature.name for feature in contract.features],
        # out= is written when everything was read
        "properties": {"graph_capture": True, "inplace": bool(contract.inplace)},
        "priority": 30,
    }
    if contract.gradient == "kernel":
        entry["backward"] = f"{_ENTRIES}:backward_{op}"
    return entry
