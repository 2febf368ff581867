"""Arrays of other libraries: whether calls on two streams ever read too early, and what a call costs.

    python benchmarks/arrays.py --output arrays.json
    JAX_PLATFORMS=cpu python benchmarks/arrays.py --output arrays.json  # where there is no GPU: the price alone

Races (on a GPU, with CuPy and JAX): a stream that is busy for a while fills an array, and the op is called at once; its
result is read at once on the caller's stream; the next call is on the other stream, while the first still runs. Each
fill is another number, so that whatever is read too early is another one. Beside the counts, which have to be 0, stand
those of the same calls with one thing deliberately wrong, which show what the test can see.

Price: a call with arrays beside the same call with tensors, in turns in one process; medians, in microseconds.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import arrays_races
import numpy as np
import record
import torch
import typer
from rich.console import Console
from rich.table import Table

from portakernel import ops

_SHAPE, _CALLS = (16, 1024), 200


def main(
    output: Annotated[Path | None, typer.Option(help="Where the JSON goes.")] = None,
    races: Annotated[int, typer.Option(help="How many races each library has to win.")] = 1000,
    rounds: Annotated[int, typer.Option(help="How often each call is timed, in batches of 200.")] = 25,
) -> None:
    """Provokes the races, measures the prices, prints both; exit status 1 where a result was wrong or no fault seen."""
    gpu = torch.cuda.is_available()
    device = "cuda:0" if gpu else "cpu"
    counted = arrays_races.all_of(races) if gpu else {}
    prices = [_priced(name, *made, rounds) for name, made in _sides(gpu)]
    document = {"circumstances": record.circumstances(device), "races": counted, "price": prices}
    console = Console(width=120)
    if gpu:
        console.print(_race_table(counted))
    else:
        console.print("No GPU: no races were run.")
    console.print(_price_table(prices))
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    bad = [name for name, row in counted.items() if row["wrong"] or not row["wrong_with_fault"]]
    if bad:
        console.print(f"Not as it should be: {', '.join(bad)}")
        raise typer.Exit(1)


def _sides(gpu: bool) -> Iterator[tuple[str, tuple[Callable[[], Any], Callable[[], Any], Callable[[], Any]]]]:
    """For each library the call with its arrays, the same with tensors, and what waits for both."""
    x, weight = torch.randn(_SHAPE), torch.randn(_SHAPE[1])
    yield "NumPy, CPU", _pair(x.numpy(), weight.numpy(), x, weight, lambda: None)
    with contextlib.suppress(ImportError):
        jax = importlib.import_module("jax")
        cpu = jax.devices("cpu")[0]
        arrays = [jax.device_put(np.asarray(each), cpu) for each in (x, weight)]
        yield "JAX, CPU", _pair(*arrays, x, weight, lambda: None)
        with jax.default_device(cpu):
            compiled = jax.jit(ops.rms_norm)
            jitted = lambda: compiled(*arrays).block_until_ready()  # noqa: E731 - one of a pair of such
            yield "JAX, CPU, inside jax.jit", (jitted, lambda: ops.rms_norm(x, weight), lambda: None)
    if not gpu:
        return
    on_gpu = x.cuda(), weight.cuda()
    with contextlib.suppress(ImportError):
        cupy = importlib.import_module("cupy")
        yield "CuPy, GPU", _pair(*map(cupy.from_dlpack, on_gpu), *on_gpu, torch.cuda.synchronize)
    with contextlib.suppress(ImportError):
        jax = importlib.import_module("jax")
        if jax.default_backend() == "gpu":
            yield "JAX, GPU", _pair(*map(jax.dlpack.from_dlpack, on_gpu), *on_gpu, torch.cuda.synchronize)


def _pair(x: Any, weight: Any, tensor: torch.Tensor, tensor_weight: torch.Tensor, wait: Callable[[], Any]) -> Any:
    return lambda: ops.rms_norm(x, weight), lambda: ops.rms_norm(tensor, tensor_weight), wait


def _priced(
    name: str, with_arrays: Callable[[], Any], with_tensors: Callable[[], Any], wait: Callable[[], Any], rounds: int
) -> dict[str, Any]:
    """The medians of both calls, timed in turns."""
    times: dict[str, list[float]] = {"arrays_us": [], "tensors_us": []}
    for each in (with_arrays, with_tensors):
        for _ in range(_CALLS):
            each()
    for _ in range(rounds):
        for side, call in (("arrays_us", with_arrays), ("tensors_us", with_tensors)):
            wait()
            begin = time.perf_counter()
            for _ in range(_CALLS):
                call()
            wait()
            times[side].append((time.perf_counter() - begin) / _CALLS * 1e6)
    return {"library": name, "call": f"rms_norm {_SHAPE} float32"} | {
        side: round(statistics.median(taken), 2) for side, taken in times.items()
    }


def _race_table(counted: dict[str, dict[str, Any]]) -> Table:
    table = Table("races", "run", "wrong", "wrong with the fault", "fault", title="Races on two streams")
    for name, row in counted.items():
        table.add_row(name, *(str(row[key]) for key in ("races", "wrong", "wrong_with_fault", "fault")))
    return table


def _price_table(prices: list[dict[str, Any]]) -> Table:
    table = Table("library", "with arrays, µs", "with tensors, µs", title=f"Price of rms_norm {_SHAPE}, float32")
    for row in prices:
        table.add_row(row["library"], f"{row['arrays_us']:.1f}", f"{row['tensors_us']:.1f}")
    return table


if __name__ == "__main__":
    typer.run(main)
