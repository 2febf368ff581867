"""The demo's decoder by plain torch and through portakernel, each as it is and under torch.compile.

    python benchmarks/demo_model.py --device cuda:0 --output benchmarks/results

A training step (loss and gradients) and the loss alone, of one batch and one set of weights; the four take turns in one
process. The model is small: what a step costs is what its operators cost the host.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import record
import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor

from portakernel_kit.demo import decoder
from portakernel_kit.demo.decoder_ops import Ops, PlainTorch, ThroughPortakernel

CALLS = 20


def steps(device: str, ops: Ops, compiled: bool) -> dict[str, Callable[[], Any]]:
    """A training step and the loss alone."""
    parameters = {name: tensor.requires_grad_() for name, tensor in decoder.initial_parameters(device).items()}
    symbols, following = decoder.batches(bytes(range(256)) * 64, 1, device)[0]

    def plain() -> Tensor:
        return decoder.losses_of(decoder.forward(parameters, symbols, ops)[0], following, ops).mean()

    loss = torch.compile(plain) if compiled else plain

    def evaluate() -> Tensor:
        with torch.no_grad():
            return loss()

    return {"training": lambda: torch.autograd.grad(loss(), list(parameters.values())), "loss": evaluate}


def milliseconds(call: Callable[[], Any], device: str) -> float:
    """How long one call takes, the device's work included."""
    synchronise = torch.cuda.synchronize if device != "cpu" else lambda: None
    synchronise()
    begun = time.perf_counter()
    for _ in range(CALLS):
        call()
    synchronise()
    return (time.perf_counter() - begun) / CALLS * 1e3


def main(
    device: Annotated[str, typer.Option(help="torch device of the model")] = "cpu",
    rounds: Annotated[int, typer.Option(help="how often each takes its turn")] = 9,
    output: Annotated[Path | None, typer.Option(help="folder for the JSON and Markdown results")] = None,
) -> None:
    """Measures, prints a table, and writes it where ``--output`` says."""
    ways = {
        "torch": steps(device, PlainTorch(), compiled=False),
        "portakernel": steps(device, ThroughPortakernel(), compiled=False),
        "torch, torch.compile": steps(device, PlainTorch(), compiled=True),
        "portakernel, torch.compile": steps(device, ThroughPortakernel(), compiled=True),
    }
    times: dict[tuple[str, str], list[float]] = {}
    for turn in range(rounds + 1):
        for name, calls in ways.items():
            for what, call in calls.items():
                took = milliseconds(call, device)
                if turn:  # the first is for caches and compilers
                    times.setdefault((name, what), []).append(took)
    table = Table("operators", "training step ms", "ratio", "loss ms", "ratio", title="The demo's decoder")
    results = []
    own = next(iter(ways))
    for name in ways:
        took, base = ([statistics.median(times[each, what]) for what in ways[own]] for each in (name, own))
        row: dict[str, Any] = {"operators": name, "training_ms": took[0], "training_ratio": base[0] / took[0]}
        row |= {"loss_ms": took[1], "loss_ratio": base[1] / took[1]}
        results.append(row)
        table.add_row(name, *(f"{cell:.2f}" for cell in list(row.values())[1:]))
    Console().print(table)
    if output is not None:
        record.write(output, "demo_model", device, {"rows": results}, table)


if __name__ == "__main__":
    typer.run(main)
