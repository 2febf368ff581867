"""Measures how much of what contracts allow our kernels take: ``docs/tolerances.json``, and a table in the docs of it.

``python -m portakernel_pages.tolerances [--device cuda:0] PLUGIN...`` runs the cases of the plugins' kernels, and puts
the farthest result of each op in the place of what is recorded for that device.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest import mock

from portakernel import runtime
from portakernel.calling.arguments import dtype_name
from portakernel.matrix.table import table
from portakernel.words.dtypes import DTYPES
from portakernel_kit.conformance import runner
from portakernel_kit.conformance.comparison import distance_ulp
from portakernel_kit.conformance.trial import Trial

_PAGE = """# How close our kernels come to what is allowed

In units in the last place of the result's dtype: the farthest result of any of our kernels in the cases of its op, of
what the op's contract allows (`portakernel/contracts/`), device by device: {measured}. Where a result is measured by
the plain formula's own distance (attention, the softmax losses' gradients in 16 bits) there is no such number.
A tolerance above what is reached is there for kernels that sum in another order, and for drawn requests, which are
longer than cases.

{table}

`docs/tolerances.json` names the kernel of each. To measure again: `python -m portakernel_pages.tolerances torch triton
hip reference` in `website/`, with `--device cuda:0` on a GPU.
"""
CPU = "CPU"
RECORD = Path(__file__).parents[2] / "docs" / "tolerances.json"


@dataclass(frozen=True, slots=True)
class Reached:
    """The farthest that results of one op and dtype were from the truth, in ulp, of what the contract allows.

    ``results`` is "forward", "saved" or "backward". ``device`` is its name, or "CPU", interpreters included.
    """

    op: str
    results: str
    dtype: str
    allowed: float
    worst: float
    kernel: str
    device: str
    date: str
    versions: str

    @property
    def share(self) -> float:
        """How much of what is allowed is taken."""
        return self.worst / self.allowed if self.allowed else 0.0


def measured(device: str, plugins: Iterable[str], seed: int) -> tuple[Reached, ...]:
    """What the kernels of ``plugins`` reach in the cases of their ops on ``device``.

    Raises:
        SystemExit: a kernel failed.
    """
    now = runtime.dispatcher()
    where = None if device == CPU else now.registry.device(device)
    about = where.name if where else CPU, f"{date.today():%Y-%m-%d}", _versions()
    found: dict[tuple[str, ...], Reached] = {}
    compared = Trial.compare

    def looking(trial: Trial, got: Any, name: str, *more: Any, **keywords: Any) -> list[str]:
        wrong = compared(trial, got, name, *more, **keywords)
        given: tuple[Any, ...] = (*more, None)
        _, _, want, tolerance, magnitude = given[:5]
        kind = dtype_name(got.dtype)
        allowed = tolerance.get(f"{name}.{kind}", tolerance.get(kind))
        if not wrong and allowed is not None and got.numel():
            far = distance_ulp(got.detach().cpu(), want, magnitude, slack=keywords.get("slack"))
            part = "backward" if name.startswith("gradient") else "saved" if name in trial.truth.saved else "forward"
            kernel = trial.kernel
            one = Reached(kernel.op, part, kind, allowed, round(float(far.max()), 3), kernel.name, *about)
            key = (one.op, part, kind)
            if key not in found or one.share > found[key].share:
                found[key] = one
        return wrong

    with mock.patch.object(Trial, "compare", looking):
        for plugin in plugins:
            for result in runner.check(now, plugin=plugin, device=where, seed=seed):
                if result.status == "failed":
                    raise SystemExit(str(result))
    return tuple(found.values())


def _versions() -> str:
    return ", ".join(f"{name} {metadata.version(name).partition('+')[0]}" for name in ("torch", "triton"))


def recorded(path: Path = RECORD) -> tuple[Reached, ...]:
    """What a file holds."""
    return tuple(Reached(**row) for row in json.loads(path.read_text(encoding="utf-8")))


def written(reached: Iterable[Reached]) -> str:
    """The text of a file that holds ``reached``, a line for each."""
    rows = sorted(reached, key=lambda one: (one.op, one.results, one.dtype, one.device))
    return "[\n" + ",\n".join(json.dumps(asdict(row)) for row in rows) + "\n]\n"


def page(reached: Iterable[Reached]) -> str:
    """docs/tolerances.md: for each op's results, by dtype and device, the farthest result of what is allowed."""
    rows: dict[tuple[str, str], dict[str, dict[str, Reached]]] = {}
    of_device: dict[str, Reached] = {}
    for one in reached:
        rows.setdefault((one.op, one.results), {}).setdefault(one.dtype, {})[one.device] = one
        of_device.setdefault(one.device, one)
    dtypes = sorted({dtype for of in rows.values() for dtype in of}, key=_width)
    body = [
        (f"`{op}`", results, *(_cell(of.get(dtype, {}), list(of_device)) for dtype in dtypes))
        for (op, results), of in rows.items()
    ]
    measured = "; ".join(f"{device}, {one.date}, {one.versions}" for device, one in of_device.items())
    return _PAGE.format(measured=measured, table=table(("op", "results", *dtypes), body))


def _width(dtype: str) -> tuple[int, str]:
    return -DTYPES[dtype].bits, dtype


def _cell(by_device: Mapping[str, Reached], devices: Sequence[str]) -> str:
    if not by_device:
        return ""
    reached = " · ".join(f"{by_device[device].worst:.2g}" if device in by_device else "–" for device in devices)
    return f"{reached} of {max(one.allowed for one in by_device.values()):g}"


def main() -> int:
    """Takes what is measured into the record; the process's exit status."""
    arguments = ArgumentParser(description=__doc__)
    arguments.add_argument("plugins", nargs="+")
    arguments.add_argument("--device", default=CPU)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--output", type=Path, default=RECORD)
    given = arguments.parse_args()
    new = measured(given.device, given.plugins, given.seed)
    known = recorded(given.output) if given.output.exists() else ()
    anew = {one.device for one in new}
    kept = (one for one in known if one.device not in anew)
    given.output.write_text(written((*kept, *new)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
