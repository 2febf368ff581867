"""What a process's first call of a Triton kernel costs when everything is compiled: beside Triton's own, in fresh ones.

    python benchmarks/first_call.py --device cuda:0 --output benchmarks/results

`portakernel warmup` fills an empty cache first. Then each op's call is made in processes of its own (first), and in
those of all other ops once theirs was made (later): by its public function, and by the same kernel's own function with
every launch left to Triton's JIT. torch's context on the device is up, and nothing of Triton or of the plugin imported.
A figure is the median over processes, until the device is done.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import record
import torch
import typer
import yaml
from rich.console import Console
from rich.progress import track
from rich.table import Table

from portakernel.calling.devices import find_device
from portakernel.contracts import contract
from portakernel.deciding.policies import intern_policy, make_layer
from portakernel.registry.kernel import Kernel
from portakernel.runtime import dispatcher
from portakernel.tensors.scratch import described
from portakernel.words.target import Target
from portakernel_kit.bench.question import launch_row, questions

WAYS = ("portakernel", "triton")
PARTS = ("portakernel", "import triton", "probe", "import plugin", "call")
BUDGET_MS = 50.0
PROCESS = Path(__file__).with_name("first_call_process.py")

Spec = dict[str, Any]


def specs(target: Target) -> list[Spec]:
    """A small call of each op by the Triton plugin's first kernel that serves it on ``target``, as text can tell it."""
    found: dict[str, Spec] = {}
    for kernel in dispatcher().registry.kernels.values():
        if kernel.plugin == "triton" and contract(kernel.op).grid is not None and kernel.op not in found:
            spec = _spec(kernel, target)
            if spec is not None:
                found[kernel.op] = spec
    return list(found.values())


def _spec(kernel: Kernel, target: Target) -> Spec | None:
    (question,) = questions(kernel.op, [launch_row(kernel.op)], ["bfloat16"], target)
    request, op = question.request, contract(kernel.op)
    policy = intern_policy((make_layer("benchmark", use=(kernel.name,)),))
    if dispatcher().decide(request, policy).chosen is not kernel:
        return None
    tensors = described(request, question.row.shapes, "meta", training=False)
    # a feature that the kernel does not list is neutral, and not passed
    unlisted = {feature.name for feature in op.features} - kernel.features
    return {
        "op": kernel.op,
        "kernel": kernel.name,
        "entry": kernel.entry,
        "tensors": {
            name: (tensor.numel() * tensor.element_size(), str(tensor.dtype).removeprefix("torch."), list(tensor.shape))
            for name, tensor in tensors.items()
        },
        "positional": [tensor.name for tensor in op.tensors if tensor.name in tensors and not tensor.keyword],
        "named": [tensor.name for tensor in op.tensors if tensor.name in tensors and tensor.keyword],
        "values": dict(question.row.values),
        "own_values": {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in request.values.items()
            if name not in unlisted
        },
        "call": {
            "op": kernel.op,
            "dtype": {name: dtype for name, dtype in question.dtypes.items() if name in tensors},
            "shape": {name: list(shape) for name, shape in question.row.shapes.items()},
            "kernel": kernel.name,
            "parameters": dict(question.row.values),
        },
    }


def warm(calls: Sequence[Spec], device: str, environment: Mapping[str, str]) -> float:
    """Fills the cache by the command that does; the seconds that took."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
        yaml.safe_dump({"calls": [call["call"] for call in calls]}, file)
        file.flush()
        command = [sys.executable, "-m", "portakernel", "warmup", "--calls", file.name, "--device", device, "--json"]
        ran = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    answer = json.loads(ran.stdout)
    if ran.returncode or answer.get("failed"):
        raise SystemExit(f"portakernel warmup failed:\n{ran.stdout}")
    seconds: float = answer["seconds"]
    return seconds


def ask(way: str, calls: Iterable[Spec], device: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """What a fresh process says of these calls, made in this order."""
    question = json.dumps({"way": way, "device": device, "calls": list(calls)})
    ran = subprocess.run(
        [sys.executable, str(PROCESS)], input=question, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    answer: dict[str, Any] = json.loads(ran.stdout)
    return answer


class Samples:
    """Milliseconds of each op by each way, where its call was the process's first, and where it was a later one."""

    def __init__(self) -> None:
        self.first: dict[tuple[str, str], list[dict[str, float]]] = {}
        self.later: dict[tuple[str, str], list[float]] = {}
        self.compiled: dict[str, list[str]] = {way: [] for way in WAYS}

    def add(self, way: str, answer: Mapping[str, Any]) -> None:
        """What one process said."""
        first, *others = answer["calls"]
        self.first.setdefault((first["op"], way), []).append(first["spent_ms"])
        for other in others:
            self.later.setdefault((other["op"], way), []).append(sum(other["spent_ms"].values()))
        self.compiled[way] += answer["compiled"]

    def result(self, op: str) -> dict[str, Any]:
        """An op's medians."""
        found: dict[str, Any] = {"op": op, "budget_ms": BUDGET_MS}
        for way in WAYS:
            several = self.first[op, way]
            later = self.later.get((op, way))
            found[way] = {
                "first_ms": statistics.median(sum(spent.values()) for spent in several),
                "parts_ms": {
                    part: statistics.median(spent[part] for spent in several) for part in PARTS if part in several[0]
                },
                "later_ms": statistics.median(later) if later else None,
            }
        ours, theirs = (found[way] for way in WAYS)
        found["first_ratio"] = ours["first_ms"] / theirs["first_ms"]
        found["later_ratio"] = ours["later_ms"] / theirs["later_ms"] if ours["later_ms"] is not None else None
        return found


def table_of(results: Sequence[Mapping[str, Any]]) -> Table:
    """The results as people read them."""
    heads = ("op", "first ms", "Triton's", "ratio", *(f"{part} ms" for part in PARTS), "later ms", "Triton's", "ratio")
    table = Table(*heads, title="First call of a kernel with a warm cache")
    for row in results:
        ours, theirs = (row[way] for way in WAYS)
        figures = (
            *(ours["first_ms"], theirs["first_ms"], row["first_ratio"]),
            *(ours["parts_ms"][part] for part in PARTS),
            *(ours["later_ms"], theirs["later_ms"], row["later_ratio"]),
        )
        texts = ("" if f is None else f"{f:.2f}" if place in (2, 10) else f"{f:.1f}" for place, f in enumerate(figures))
        table.add_row(row["op"], *texts)
    return table


def main(
    device: Annotated[str, typer.Option(help="torch device, a GPU")] = "cuda:0",
    rounds: Annotated[int, typer.Option(min=1, help="processes for each op and way")] = 2,
    op: Annotated[list[str] | None, typer.Option(help="only these ops; repeatable")] = None,
    output: Annotated[Path | None, typer.Option(help="folder for the JSON and Markdown results")] = None,
) -> None:
    """Measures, prints a table, and writes it where ``--output`` says."""
    place = torch.device(device if ":" in device else f"{device}:0")
    if place.type != "cuda":
        raise SystemExit(f"first_call measures kernels of GPUs, which {device} is none of; give --device cuda:0")
    calls = [call for call in specs(find_device(dispatcher().registry, place).target) if not op or call["op"] in op]
    if not calls:
        raise SystemExit(f"the Triton plugin has no kernel of {', '.join(op or ['any op'])} for {place}")
    samples = Samples()
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "TRITON_CACHE_DIR": cache}
        seconds = warm(calls, str(place), environment)
        turns = [(call, way) for _ in range(rounds) for call in calls for way in WAYS]
        for call, way in track(turns, "measuring", console=Console(stderr=True), transient=True):
            others = (other for other in calls if other is not call)
            samples.add(way, ask(way, [call, *others], str(place), environment))
    results = [samples.result(call["op"]) for call in calls]
    later = [row["portakernel"]["later_ms"] for row in results if row["portakernel"]["later_ms"] is not None]
    first = statistics.median(row["portakernel"]["first_ms"] for row in results)
    theirs = statistics.median(row["triton"]["first_ms"] for row in results)
    missed = {way: sorted(set(names)) for way, names in samples.compiled.items() if names}
    note = (
        f"portakernel warmup filled the cache in {seconds:.1f} s. A process's first call: median {first:.0f} ms,"
        f" Triton's {theirs:.0f} ms. A later kernel's: at most {max(later, default=0.0):.1f} ms of {BUDGET_MS:.0f}."
        f" Compiled although the cache was warm: {missed or 'nothing'}."
    )
    table = table_of(results)
    Console(width=200).print(table)
    print(note)
    if output is not None:
        data = {"ops": results, "warmup_seconds": seconds, "compiled": samples.compiled}
        record.write(output, "first_call", str(place), data, table, note)


if __name__ == "__main__":
    typer.run(main)
