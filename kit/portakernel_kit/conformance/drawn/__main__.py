"""``python -m portakernel_kit.conformance.drawn``: requests drawn from contracts, put to every kernel that claims them.

Failures are written to ``failures.jsonl`` as they come, counts to ``summary.json``; ``--number`` repeats one request.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from portakernel.contracts import contracts
from portakernel_kit.conformance.drawn.processes import run_all
from portakernel_kit.conformance.drawn.trying import Begun, Job, Tried, Undefined
from portakernel_kit.conformance.observing.isolation import Death
from portakernel_kit.conformance.runner import fresh_seed


def main() -> int:
    """Runs the requests; 1 where one failed."""
    asked = _arguments()
    seed = fresh_seed() if asked.seed is None else asked.seed
    one = asked.number is not None
    job = Job(
        device=asked.device,
        ops=tuple(asked.op or sorted(contracts())),
        kernels=frozenset(asked.kernel or ()),
        seed=seed,
        first=asked.number if one else 0,
        step=1,
        end=asked.number + 1 if one else asked.draws,
        seconds=asked.seconds,
        modes=asked.modes,
    )
    workers = 1 if one else asked.workers or max(1, min(8, (os.cpu_count() or 1) // 2))
    _say(f"seed {seed}, device {job.device}, {workers} processes")
    if asked.output is None:
        return _run(job, workers, None)
    asked.output.mkdir(parents=True, exist_ok=True)
    return _run(job, workers, asked.output)


def _run(job: Job, workers: int, folder: Path | None) -> int:
    numbers, ran, failed, undefined, start = set[int](), Counter[str](), Counter[str](), 0, time.monotonic()
    for event in run_all(job, workers):
        match event:
            case Begun():
                numbers.add(event.number)
                ran[event.kernel] += 1
            case Undefined():
                undefined += 1
            case Tried() if event.outcome.status == "failed":
                failed[event.begun.kernel] += 1
                _report(folder, _failure(job, event.begun, asdict(event.outcome), event.drawn))
            case (begun, death):
                failed[begun.kernel] += 1
                _report(folder, _failure(job, begun, _died(death), None))
            case Death():
                failed["(start)"] += 1
                _report(folder, {"seed": job.seed, "device": job.device, **_died(event)})
            case _:
                pass
    summary = {
        "seed": job.seed,
        "device": job.device,
        "seconds": round(time.monotonic() - start),
        "requests": len(numbers),
        "undefined": undefined,
        "kernels": {name: {"requests": count, "failures": failed[name]} for name, count in sorted(ran.items())},
        "failures": failed.total(),
    }
    if folder is not None:
        (folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    for name, count in sorted(ran.items()):
        _say(f"{name:40} {count:6} requests {failed[name]:5} failures")
    text = f"{len(numbers)} requests ({undefined} refused by the op) in {summary['seconds']} s"
    _say(f"{text}; {failed.total()} failures")
    return 1 if failed else 0


def _failure(job: Job, begun: Begun, outcome: dict[str, Any], drawn: dict[str, Any] | None) -> dict[str, Any]:
    return {"seed": job.seed, "device": job.device, **asdict(begun), **outcome, "request": drawn}


def _died(death: Death) -> dict[str, Any]:
    return {"aspect": death.outcome, "status": "failed", "detail": death.text, "traceback": death.written}


def _report(folder: Path | None, failure: dict[str, Any]) -> None:
    """One failure: a line on the terminal, all of it in the file at once, in case nothing comes after."""
    named = (str(failure.get(key, "")) for key in ("number", "kernel", "aspect"))
    _say(f"{' '.join(named)} {str(failure['detail'])[:300]}")
    if folder is not None:
        with (folder / "failures.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(failure) + "\n")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m portakernel_kit.conformance.drawn", description=__doc__)
    parser.add_argument("--device", default="cpu", help="torch's name for it: cpu, cuda:0")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long requests are drawn")
    parser.add_argument("--draws", type=int, default=1 << 30, metavar="N", help="and how many at most")
    parser.add_argument("--seed", type=int, help="what decides the requests; fresh when left out")
    parser.add_argument("--number", type=int, metavar="N", help="the one request to repeat")
    parser.add_argument("--op", action="append", help="an op to draw for; all when left out; repeatable")
    parser.add_argument("--kernel", action="append", help="a kernel or a plugin to try; all when left out; repeatable")
    parser.add_argument("--modes", action="store_true", help="run kernels for other devices in their plugin's mode")
    parser.add_argument("--workers", type=int, metavar="N", help="processes; half of the cores, up to 8, when left out")
    parser.add_argument("--output", type=Path, metavar="DIR", help="where failures.jsonl and summary.json go")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
