"""A hundred thousand calls of which no two need be of one size: how many are decided anew, and what is kept.

    python benchmarks/random_lengths.py --device cpu --output benchmarks/results

Sequence lengths, rows, batches and bags are drawn afresh for each call, as a serving engine's are; widths stay.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import record
import torch
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from portakernel import ops
from portakernel.deciding.decision import Decision
from portakernel.runtime import caller, dispatcher

Draw = Callable[[random.Random], tuple[tuple[Any, ...], dict[str, Any]]]


def draws(device: str, longest: int) -> dict[str, Draw]:
    """For each op a call of random lengths."""

    def tensor(*shape: int) -> torch.Tensor:
        return torch.ones(shape, device=device)

    def rows(count: int, *more: torch.Tensor, width: int = 64) -> Draw:
        return lambda chance: ((*[tensor(chance.randint(1, longest), width)] * count, *more), {})

    def attention(chance: random.Random) -> tuple[tuple[Any, ...], dict[str, Any]]:
        batch, queries, keys = chance.randint(1, 4), chance.randint(1, longest // 8), chance.randint(1, longest // 8)
        key = tensor(batch, max(queries, keys), 1, 32)
        return (tensor(batch, queries, 2, 32), key, key), {"causal": chance.random() < 0.5}

    def varlen(chance: random.Random) -> tuple[tuple[Any, ...], dict[str, Any]]:
        lengths = [chance.randint(0, longest // 8) for _ in range(chance.randint(1, 4))]
        ends = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
        cu = torch.tensor(ends, dtype=torch.int32, device=device)
        packed = tensor(ends[-1], 2, 32)
        longest_here = max(*lengths, 1)
        return (packed, packed, packed, cu, cu), {"max_seqlen_q": longest_here, "max_seqlen_k": longest_here}

    def bags(chance: random.Random) -> tuple[tuple[Any, ...], dict[str, Any]]:
        count = chance.randint(1, longest)
        indices = torch.randint(0, 100, (count,), device=device)
        starts = sorted(chance.randint(0, count) for _ in range(chance.randint(0, 20)))
        return (tensor(100, 16), indices, torch.tensor([0, *starts], device=device)), {}

    def rotary(chance: random.Random) -> tuple[tuple[Any, ...], dict[str, Any]]:
        length = chance.randint(1, longest)
        angles = tensor(length, 16)
        return (tensor(length, 2, 32), tensor(length, 1, 32), angles, angles), {}

    def losses(chance: random.Random) -> tuple[tuple[Any, ...], dict[str, Any]]:
        count = chance.randint(1, longest)
        return (tensor(count, 64), torch.zeros(count, dtype=torch.int64, device=device)), {}

    wide = tensor(64)
    return {
        "add": rows(2),
        "rms_norm": rows(1, wide),
        "add_rms_norm": rows(2, wide),
        "layer_norm": rows(1, wide, wide),
        "softmax": rows(1),
        "silu_and_mul": rows(1),
        "linear_act": rows(1, tensor(32, 64)),
        "quantize_fp8": lambda chance: ((tensor(chance.randint(1, longest), 64),), {"granularity": "row"}),
        "cross_entropy": losses,
        "rotary_embedding": rotary,
        "embedding_bag": bags,
        "attention": attention,
        "attention_varlen": varlen,
    }


def main(
    device: Annotated[str, typer.Option(help="torch device of the arguments")] = "cpu",
    calls: Annotated[int, typer.Option(help="calls in all, spread over the ops")] = 100_000,
    longest: Annotated[int, typer.Option(help="the largest length that is drawn")] = 512,
    output: Annotated[Path | None, typer.Option(help="folder for the JSON and Markdown results")] = None,
) -> None:
    """Measures, prints a table, and writes it where ``--output`` says."""
    warnings.simplefilter("ignore")
    now, chance = dispatcher(), random.Random(20261121)
    decided: list[tuple[str, float]] = []
    decide = now.decide

    def counted(*arguments: Any, **named: Any) -> Decision:
        begun = time.perf_counter_ns()
        found = decide(*arguments, **named)
        decided.append((found.request.op, (time.perf_counter_ns() - begun) / 1e3))
        return found

    now.decide = counted  # type: ignore[method-assign]  # what is counted is every decision, whoever asks for it
    table = Table("op", "calls", "sizes", "decisions", "hit rate", "keys", title="Calls of random lengths")
    results: list[dict[str, Any]] = []
    each = draws(device, longest)
    share, sizes = calls // len(each), dict[str, set[Any]]()
    tracemalloc.start()
    with torch.no_grad():
        for op, draw in track(each.items(), "calling", console=Console(stderr=True), transient=True):
            function, seen = getattr(ops, op), sizes.setdefault(op, set())
            decided_before = len(decided)
            kept: list[int] = []
            for call in range(share):
                tensors, parameters = draw(chance)
                seen.add(tuple(t.shape for t in tensors))
                function(*tensors, **parameters)
                if call in (share // 2, share - 1):
                    gc.collect()
                    kept.append(_kept_bytes())
            misses = len(decided) - decided_before
            row = {
                "op": op,
                "calls": share,
                "sizes": len(seen),
                "decisions": misses,
                "hit_rate": 1 - misses / share,
                "keys": len(caller(op).table.entries),
                "grown_in_second_half_bytes": kept[1] - kept[0],
            }
            results.append(row)
            cells = (op, share, len(seen), misses, f"{row['hit_rate']:.4%}", row["keys"])
            table.add_row(*map(str, cells))
    times = [microseconds for _, microseconds in decided]
    summary = {
        "decisions": len(times),
        "decision_median_us": statistics.median(times),
        "decision_p99_us": statistics.quantiles(times, n=100)[98],
        "kept_by_portakernel_bytes": _kept_bytes(),
    }
    Console().print(table)
    grown = sum(row["grown_in_second_half_bytes"] for row in results)
    note = f"portakernel's lines hold {summary['kept_by_portakernel_bytes'] / 1e6:.1f} MB; {grown / 1e3:.0f} kB of that"
    note += " came in the second halves of the ops' calls."
    print(note)
    if output is not None:
        record.write(output, "random_lengths", device, {"ops": results, **summary}, table, note)


def _kept_bytes() -> int:
    """Memory that portakernel's own lines allocated and that is still held."""
    filters = [tracemalloc.Filter(True, "*/portakernel/*.py"), tracemalloc.Filter(True, "<portakernel*")]
    snapshot = tracemalloc.take_snapshot().filter_traces(filters)
    return sum(statistic.size for statistic in snapshot.statistics("filename"))


if __name__ == "__main__":
    typer.run(main)
