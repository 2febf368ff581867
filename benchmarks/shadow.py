"""What shadow verification costs a decoder that serves: its step with and without, in turns, while it is scraped.

A step is a few layers of rms_norm, linear_act (as a matrix product), rotary_embedding, attention over keys that are
there, and silu_and_mul, through ops, in bfloat16. Phases with and without shadow verification follow each other, the
order turned round each time, so that drift meets both; a Prometheus registry is scraped every 100 ms in all of them.

    python benchmarks/shadow.py --device cuda --seconds 40 --rounds 3 --output shadow.json
    OMP_NUM_THREADS=1 python benchmarks/shadow.py --small --seconds 2 --rounds 2   # on a CPU that others use too
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import prometheus_client
import torch
from torch import Tensor

import portakernel
from portakernel import ops

_SCRAPE_S = 0.1
# Steps that are launched before the host waits for them.
_STEPS = 8


@dataclass(frozen=True, slots=True)
class Sizes:
    """The decoder's: ``rows`` sequences of which each has ``length`` keys, and now one token more.

    So many that a step waits for the device: what the host takes varies by more from step to step than is looked for.
    """

    layers: int = 4
    hidden: int = 4096
    heads: int = 32
    key_heads: int = 8
    head: int = 128
    feed: int = 14336
    rows: int = 128
    length: int = 2048


SMALL = Sizes(layers=2, hidden=256, heads=4, key_heads=2, head=64, feed=512, rows=4, length=64)


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's weights, and the keys and values that are there."""

    norms: tuple[Tensor, Tensor]
    qkv: Tensor
    out: Tensor
    gate_up: Tensor
    down: Tensor
    keys: Tensor
    values: Tensor


@dataclass(slots=True)
class Phase:
    """What was timed in a phase."""

    shadow: bool
    steps: int = 0
    seconds: float = 0.0
    groups_ms: list[float] = field(default_factory=list)

    @property
    def step_ms(self) -> float:
        """The mean of a step."""
        return self.seconds / self.steps * 1000


def decoder(sizes: Sizes, device: torch.device) -> Callable[[], Tensor]:
    """A step of the decoder."""
    source = torch.Generator(device).manual_seed(0)

    def draw(*shape: int, scale: float = 0.02) -> Tensor:
        return torch.randn(shape, generator=source, device=device, dtype=torch.bfloat16) * scale

    s = sizes
    width = (s.heads + 2 * s.key_heads) * s.head
    layers = [
        Layer(
            (1 + draw(s.hidden), 1 + draw(s.hidden)),
            draw(width, s.hidden),
            draw(s.hidden, s.heads * s.head),
            draw(2 * s.feed, s.hidden),
            draw(s.hidden, s.feed),
            draw(s.rows, s.length, s.key_heads, s.head, scale=1.0),
            draw(s.rows, s.length, s.key_heads, s.head, scale=1.0),
        )
        for _ in range(s.layers)
    ]
    angles = torch.rand(s.rows, s.head // 2, generator=source, device=device)
    cos, sin, tokens = angles.cos(), angles.sin(), draw(s.rows, s.hidden, scale=1.0)

    def step() -> Tensor:
        x = tokens
        for layer in layers:
            y = ops.linear_act(ops.rms_norm(x, layer.norms[0]), layer.qkv, activation="none")
            q, k, v = y.view(s.rows, -1, s.head).split([s.heads, s.key_heads, s.key_heads], 1)
            q, k = ops.rotary_embedding(q.contiguous(), k.contiguous(), cos, sin)
            layer.keys[:, -1], layer.values[:, -1] = k, v
            attended = ops.attention(q.unsqueeze(1), layer.keys, layer.values)
            x = x + ops.linear_act(attended.view(s.rows, -1), layer.out, activation="none")
            y = ops.silu_and_mul(ops.linear_act(ops.rms_norm(x, layer.norms[1]), layer.gate_up, activation="none"))
            x = x + ops.linear_act(y, layer.down, activation="none")
        return x

    return step


def timed(step: Callable[[], Tensor], seconds: float, shadow: bool, wait: Callable[[], None]) -> Phase:
    """Steps for so long."""
    found, begin = Phase(shadow), time.perf_counter()
    while (now := time.perf_counter()) - begin < seconds:
        for _ in range(_STEPS):
            step()
        wait()
        found.groups_ms.append((time.perf_counter() - now) * 1000)
        found.steps += _STEPS
    found.seconds = time.perf_counter() - begin
    return found


@contextmanager
def scraped() -> Iterator[list[float]]:
    """Inside, a registry with the metrics is scraped every 100 ms; the milliseconds that each scrape took."""
    registry, took, ended = prometheus_client.CollectorRegistry(), list[float](), threading.Event()
    registry.register(portakernel.metrics.collector())

    def scrape() -> None:
        while not ended.wait(_SCRAPE_S):
            begin = time.perf_counter()
            prometheus_client.generate_latest(registry)
            took.append((time.perf_counter() - begin) * 1000)

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield took
    finally:
        ended.set()
        thread.join()


def compared(phases: list[Phase]) -> dict[str, Any]:
    """What the phases with shadow verification take of the time of those without, each beside its neighbour."""
    pairs = list(zip(phases[::2], phases[1::2], strict=True))
    ratios = [on.step_ms / off.step_ms for a, b in pairs for on, off in [(a, b) if a.shadow else (b, a)]]
    groups: dict[bool, list[float]] = {True: [], False: []}
    for one in phases:
        groups[one.shadow] += one.groups_ms
    medians = {shadow: statistics.median(groups[shadow]) / _STEPS for shadow in groups}
    return {
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "ratio_of_medians": medians[True] / medians[False],
        "step_ms_with": medians[True],
        "step_ms_without": medians[False],
        "p99_ms_with": statistics.quantiles(groups[True], n=100)[-1] / _STEPS,
        "p99_ms_without": statistics.quantiles(groups[False], n=100)[-1] / _STEPS,
    }


def main() -> None:
    """Times both, prints the ratio, writes everything to ``--output``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--small", action="store_true", help="a small decoder, for a CPU")
    parser.add_argument("--seconds", type=float, default=30.0, help="of one phase")
    parser.add_argument("--rounds", type=int, default=4, help="pairs of phases, with and without")
    parser.add_argument("--share", type=float, default=0.001)
    parser.add_argument("--every", default="1s")
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    device, sizes = torch.device(asked.device), SMALL if asked.small else Sizes()
    on_gpu = device.type != "cpu"
    wait: Callable[[], None] = torch.accelerator.synchronize if on_gpu else lambda: None
    # kernels that fall back would be told once each; what is measured is the same on both sides
    warnings.simplefilter("ignore", portakernel.errors.FallbackWarning)
    step, phases = decoder(sizes, device), list[Phase]()
    with torch.inference_mode(), scraped() as scrapes:
        timed(step, min(asked.seconds, 10.0), False, wait)
        for number in range(asked.rounds):
            for shadow in (True, False) if number % 2 else (False, True):
                if shadow:
                    portakernel.shadow.configure(every=asked.every, share=asked.share)
                phases.append(timed(step, asked.seconds, shadow, wait))
                portakernel.shadow.stop()
    report, found = portakernel.shadow.report(), compared(phases)
    name = torch.get_device_module(device).get_device_name(device) if on_gpu else f"{platform.machine()} CPU"
    whole = {
        "device": name, "torch": torch.__version__, "sizes": asdict(sizes), "share": asked.share, "every": asked.every,
        **found,
        "phases": [{"shadow": one.shadow, "steps": one.steps, "seconds": one.seconds} for one in phases],
        "shadow": {
            "checked": report.checked, "mismatched": report.mismatched, "skipped": dict(report.skipped),
            "seconds": report.seconds, "kernels": [asdict(one) for one in report.kernels], "errors": report.errors,
        },
        "scrapes": {"count": len(scrapes), "median_ms": statistics.median(scrapes), "most_ms": max(scrapes)},
    }  # fmt: skip
    print(f"{name}: a step takes {found['step_ms_without']:.3f} ms, verified {found['step_ms_with']:.3f} ms")
    print(f"the ratio of {asked.rounds} pairs of phases is {found['ratio']:.5f} (goal: at most 1.002)")
    print(f"{len(scrapes)} scrapes of {whole['scrapes']['median_ms']:.2f} ms each meanwhile")
    print(report)
    if asked.output is not None:
        asked.output.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
