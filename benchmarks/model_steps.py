"""Models by plain torch and through portakernel: inference and training, as they are and under torch.compile.

    python benchmarks/model_steps.py --device cuda:0 --output benchmarks/results

Both sides run in turns in one process, on one set of weights; a ratio is plain torch's least time over ours, above 1
where ours is faster: most of these times are the host's, which others disturb by tenths and never speed up. Numbers are
compared first, each with the same model in float64: ours may be off by as much as twice plain torch's. ``--check``
compares and measures nothing, as CI does on a CPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import record
import torch
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table
from step_models import OURS, PLAIN, Subject, demo_decoder, diffusion_block, mlp_block, ranking_model, single_ops
from torch import Tensor

_SECONDS = 0.4
# What a compiled model may be off by, beside plain torch's own error: of results near 0, and of those alike.
_MOST, _LEAST = 2.0, 1e-5

Call = Callable[[], Any]


def _calls(subject: Subject, phase: str, mode: str) -> tuple[Call, Call]:
    """Plain torch's and ours, of one phase in one mode."""

    def call(by: Any) -> Call:
        model = subject.model(by)
        if mode != "eager":
            model = torch.compile(model, dynamic=False, mode="reduce-overhead" if mode == "CUDA graphs" else None)
        if phase == "inference":

            def infer() -> Tensor:
                with torch.no_grad():
                    return model(*subject.inputs, *subject.trained)

            return infer
        leaves = [tensor.detach().requires_grad_() for tensor in subject.trained]
        fixed = [t.detach().requires_grad_() if t.is_floating_point() else t for t in subject.inputs]
        wanted = [*leaves, *(tensor for tensor in fixed if tensor.requires_grad)]

        def train() -> tuple[Tensor, ...]:
            result = model(*fixed, *leaves)
            return torch.autograd.grad(result, wanted, torch.ones_like(result))

        return train

    return call(PLAIN), call(OURS)


def _exact(subject: Subject, phase: str) -> tuple[Tensor, ...]:
    wide = [
        tuple(t.double() if t.is_floating_point() else t for t in group) for group in (subject.inputs, subject.trained)
    ]
    plain, _ = _calls(Subject(subject.name, subject.model, *wide), phase, "eager")
    return _several(plain())


def _several(found: Any) -> tuple[Tensor, ...]:
    return found if isinstance(found, tuple) else (found,)


def _error(found: Any, exact: tuple[Tensor, ...]) -> float:
    """The largest error of any result, as a part of that result's root mean square."""
    pairs = zip(_several(found), exact, strict=True)
    return max(((a.double() - b).abs().max() / b.square().mean().sqrt().clamp(min=1e-30)).item() for a, b in pairs)


def _seconds(call: Call, device: str) -> float:
    synchronise = torch.cuda.synchronize if device != "cpu" else lambda: None
    times = 1
    while True:
        synchronise()
        begun = time.perf_counter()
        for _ in range(times):
            call()
        synchronise()
        took = time.perf_counter() - begun
        if took > _SECONDS / 8:
            return took / times
        times *= 2 if took > _SECONDS / 64 else 8


def _measured(calls: tuple[Call, Call], device: str, rounds: int) -> tuple[float, float]:
    """The least seconds of both, which take turns."""
    times: tuple[list[float], list[float]] = [], []
    for turn in range(rounds):
        for call, kept in list(zip(calls, times, strict=True))[:: 1 if turn % 2 else -1]:
            kept.append(_seconds(call, device))
    return min(times[0]), min(times[1])


def _subjects(device: str) -> Iterator[tuple[Subject, tuple[tuple[str, str], ...]]]:
    """Each model with the phases and modes that it is measured in."""
    graphs = () if device == "cpu" else (("inference", "CUDA graphs"),)
    compiled = (("inference", "compiled"), *graphs, ("training", "compiled"))
    every = (("inference", "eager"), ("training", "eager"), *compiled)
    for tokens in (1, 64, 4096) if device != "cpu" else (1, 64):
        yield mlp_block(device, tokens), compiled
    yield diffusion_block(device), every
    yield ranking_model(device), every
    yield demo_decoder(device), every
    for subject in single_ops(device):
        yield subject, (("training", "eager"),)


def main(
    device: Annotated[str, typer.Option(help="torch device of the models")] = "cpu",
    rounds: Annotated[int, typer.Option(help="how often each takes its turn")] = 7,
    check: Annotated[bool, typer.Option("--check", help="compare the numbers, and measure nothing")] = False,
    only: Annotated[str, typer.Option(help="models whose names have this in them")] = "",
    output: Annotated[Path | None, typer.Option(help="folder for the JSON and Markdown results")] = None,
) -> None:
    """Compares, measures, prints a table, and writes it where ``--output`` says."""
    torch.manual_seed(0)
    rows: list[dict[str, Any]] = []
    table = Table(
        "model", "phase", "mode", "plain ms", "ours ms", "ratio", title="Models by plain torch and by portakernel"
    )
    chosen = [(subject, ways) for subject, ways in _subjects(device) if only in subject.name]
    wrong = []
    for subject, (phase, mode) in track([(one, way) for one, ways in chosen for way in ways], "Models", transient=True):
        torch.compiler.reset()
        calls, exact = _calls(subject, phase, mode), _exact(subject, phase)
        errors = [_error(call(), exact) for call in calls]
        row = {"model": subject.name, "phase": phase, "mode": mode, "plain_error": errors[0], "error": errors[1]}
        if errors[1] > max(_MOST * errors[0], _LEAST):
            wrong.append(f"{subject.name}, {phase}, {mode}: off by {errors[1]:.2g}, and plain torch by {errors[0]:.2g}")
        if not check:
            plain, ours = _measured(calls, device, rounds)
            row |= {"plain_ms": plain * 1e3, "ms": ours * 1e3, "ratio": plain / ours}
            table.add_row(subject.name, phase, mode, f"{plain * 1e3:.3f}", f"{ours * 1e3:.3f}", f"{plain / ours:.2f}")
        rows.append(row)
    if not check:
        Console().print(table)
        if output is not None:
            record.write(output, "model_steps", device, {"rows": rows}, table)
    for text in wrong:
        Console(stderr=True).print(text)
    Console().print(f"{len(rows) - len(wrong)} of {len(rows)} have equal numbers")
    raise typer.Exit(1 if wrong else 0)


if __name__ == "__main__":
    typer.run(main)
