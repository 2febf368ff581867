"""What the plugin claims: each op as its contract has it, less what Inductor cannot compile; no torch here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from portakernel.authoring import Contract, contracts
from portakernel_plugins.inductor.exclusions import EXCLUDED, Exclusion

_ENTRIES = "portakernel_plugins.inductor.entries"


# Inductor writes Triton on NVIDIA, AMD and Intel, C++ on CPUs, Metal on Apple's.
_TARGETS: Mapping[str, str] = {"nvidia": "sm_75+", "amd": "any", "intel": "any", "cpu": "any", "apple": "any"}


def entries() -> list[dict[str, Any]]:
    """A ``kernels:`` entry for each op that Inductor can compile somewhere."""
    return [entry for contract in contracts().values() if (entry := _entry(contract)) is not None]


def _entry(contract: Contract) -> dict[str, Any] | None:
    """One op's entry, with a variant for each group of vendors that leaves something else of it."""
    op = contract.op
    ours = [exclusion for exclusion in EXCLUDED if exclusion.op in ("", op)]
    groups: list[tuple[dict[str, Any], dict[str, str]]] = []
    for vendor, archs in _TARGETS.items():
        out = [exclusion for exclusion in ours if vendor in exclusion.vendors or not exclusion.vendors]
        if any(exclusion.is_whole for exclusion in out):
            continue
        claim = _claim(contract, out)
        known = next((targets for other, targets in groups if other == claim), None)
        if known is None:
            groups.append((claim, known := {}))
        known[vendor] = archs
    if not groups:
        return None
    limits: dict[str, Any] = {f"{name}.contiguous": {"in": [True]} for name in contract.names}
    # a launch over no rows is no launch, and Inductor's wrappers do not say so themselves
    limits |= {name: {"min": 1} for name in contract.dims if name not in contract.fixed_dims}
    entry: dict[str, Any] = {
        "op": op,
        "entry": f"{_ENTRIES}:forward_{op}",
        "build": f"{_ENTRIES}:build_{op}",
        "limits": limits,
        # out= is written when everything was read
        "properties": {"graph_capture": True, "inplace": bool(contract.inplace)},
        "priority": 30,
    }
    if contract.gradient == "kernel":
        entry["backward"] = f"{_ENTRIES}:backward_{op}"
    claims = [{"targets": targets, **claim} for claim, targets in groups]
    if len(claims) == 1:
        return entry | claims[0]
    return entry | {"variants": [{"name": "_".join(claim["targets"]), **claim} for claim in claims]}


def _claim(contract: Contract, out: Sequence[Exclusion]) -> dict[str, Any]:
    """What the reference serves, less what is excluded."""
    dtypes = {text for exclusion in out for text in exclusion.dtypes}
    formats = {text for exclusion in out for text in exclusion.formats}
    features = {text for exclusion in out for text in exclusion.features}
    return {
        "dtypes": {
            name: [d for d in contract.accepted_dtypes(name, {}) if not dtypes & {d, f"{name}.{d}"}]
            for name in contract.typed
        },
        "formats": {
            parameter.of or parameter.name: [text for text in parameter.choices if text not in formats]
            for parameter in contract.parameters
            if parameter.kind == "format"
        },
        "features": [feature.name for feature in contract.features if feature.name not in features],
    }
