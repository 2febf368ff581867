"""What the page of the matrix has to show for a choice, and what it shows."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from portakernel_pages.generate import first_party

from portakernel.matrix.proofs import recorded
from portakernel.matrix.table import support_matrix

Choice = dict[str, str]
Places = set[tuple[str, str, str]]


@cache
def claims() -> list[dict[str, Any]]:
    """Each kernel on each arch as `matrix --json` and the record have it, not as the page does."""
    proofs: dict[tuple[str, str], list[Any]] = {}
    for proof in recorded():
        proofs.setdefault((proof.kernel, proof.target), []).append(proof)
    found = []
    for support in json.loads(json.dumps([support.to_json() for support in support_matrix(first_party())])):
        plugins = {kernel["kernel"]: kernel["plugin"] for kernel in support["kernels"]}
        for place in support["places"]:
            for kernel in place["kernels"]:
                dtypes, formats = (
                    {n for names in kernel[key].values() for n in names} for key in ("dtypes", "formats")
                )
                where = {"op": support["op"], "vendor": place["vendor"], "plugin": plugins[kernel["kernel"]]}
                for arch in place["archs"]:
                    proven = proofs.get((kernel["kernel"], f"{place['vendor']}:{arch}"), [])
                    what = {"kernel": kernel["kernel"], "dtypes": dtypes, "formats": formats, "proofs": proven}
                    found.append({**where, "arch": arch, **what})
    return found


def expected(choice: Choice) -> Places:
    def fits(claim: dict[str, Any]) -> bool:
        exact = all(claim[key] == choice[key] for key in ("op", "vendor", "arch", "plugin") if key in choice)
        dtype, scale_format = choice.get("dtype"), choice.get("format")
        claimed = dtype in {None, *claim["dtypes"]} and scale_format in {None, *claim["formats"]}
        proven = "proof" not in choice or any(
            proof.kind == choice["proof"] and dtype in {None, *proof.dtypes} and scale_format in {None, *proof.formats}
            for proof in claim["proofs"]
        )
        return exact and claimed and proven

    return {(claim["kernel"], claim["vendor"], claim["arch"]) for claim in claims() if fits(claim)}


def shown(page: Any, choice: Choice) -> Places:
    """What the rows in sight say; one may be of several archs, of which only the chosen one counts."""
    rows = page.evaluate(
        "[...document.querySelectorAll('tr[data-kernel]')].filter(row => row.checkVisibility())"
        ".map(row => [row.dataset.kernel, row.dataset.vendor, row.dataset.arch])"
    )
    chosen = choice.get("arch")
    found = set()
    for kernel, vendor, names in rows:
        archs = names.split()
        # a row of other archs alone would be one too many
        found |= {(kernel, vendor, arch) for arch in ([chosen] if chosen in archs else [*archs])}
    return found
