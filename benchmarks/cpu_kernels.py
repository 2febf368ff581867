"""CPU kernels beside plain torch: what a call costs through portakernel over the same formula in torch.nn.functional.

Sizes are drawn by a seed from what small and large models meet. Both sides alternate in one run; a row is the ratio of
plain torch's median time to ours, above 1 where ours is faster.

    python benchmarks/cpu_kernels.py --draws 12 --seed 1
"""

from __future__ import annotations

import argparse
import platform
import random
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from portakernel import ops

_EPS = 1e-6
_ALTERNATIONS, _SECONDS = 400, 4.0


def _rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    cos, sin = torch.cat((cos, cos), -1).unsqueeze(1), torch.cat((sin, sin), -1).unsqueeze(1)
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def _calls(op: str, rows: int, width: int, dtype: torch.dtype, source: torch.Generator) -> tuple[list[Tensor], ...]:
    """The tensors that require gradients, and the others."""

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=source).to(dtype)

    match op:
        case "silu_and_mul" | "gelu_and_mul":
            return [draw(rows, 2 * width)], []
        case "rotary_embedding":
            heads = max(2, width // 64)
            return [draw(rows, heads, 64), draw(rows, max(1, heads // 4), 64)], [draw(rows, 32), draw(rows, 32)]
        case "rms_norm":
            return [draw(rows, width), draw(width)], []
        case "layer_norm":
            return [draw(rows, width), draw(width), draw(width)], []
        case "add_rms_norm":
            return [draw(rows, width), draw(rows, width), draw(width)], []
        case _:
            return [draw(rows, width), draw(rows, width), draw(width), draw(width)], []


OURS: dict[str, Callable[..., object]] = {
    "silu_and_mul": ops.silu_and_mul,
    "gelu_and_mul": ops.gelu_and_mul,
    "rotary_embedding": ops.rotary_embedding,
    "rms_norm": lambda x, w: ops.rms_norm(x, w, eps=_EPS),
    "add_rms_norm": lambda x, r, w: ops.add_rms_norm(x, r, w, eps=_EPS),
    "layer_norm": lambda x, w, b: ops.layer_norm(x, w, b, eps=_EPS),
    "add_layer_norm": lambda x, r, w, b: ops.add_layer_norm(x, r, w, b, eps=_EPS),
}
PLAIN: dict[str, Callable[..., object]] = {
    "silu_and_mul": lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1],
    "gelu_and_mul": lambda x: F.gelu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1],
    "rotary_embedding": lambda q, k, cos, sin: (_rotary(q, cos, sin), _rotary(k, cos, sin)),
    "rms_norm": lambda x, w: F.rms_norm(x, w.shape, w, _EPS),
    "add_rms_norm": lambda x, r, w: (F.rms_norm(s := x + r, w.shape, w, _EPS), s),
    "layer_norm": lambda x, w, b: F.layer_norm(x, w.shape, w, b, _EPS),
    "add_layer_norm": lambda x, r, w, b: (F.layer_norm(s := x + r, w.shape, w, b, _EPS), s),
}


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _ratio(ours: Callable[[], object], plain: Callable[[], object]) -> tuple[float, float]:
    """Our median time in microseconds, and plain torch's over it."""
    both = ours, plain
    for call in both * 3:
        call()
    times: tuple[list[float], list[float]] = [], []
    end = time.perf_counter() + _SECONDS
    while len(times[0]) < 5 or (len(times[0]) < _ALTERNATIONS and time.perf_counter() < end):
        for call, kept in zip(both, times, strict=True):
            kept.append(_seconds(call))
    mine, theirs = map(statistics.median, times)
    return mine * 1e6, theirs / mine


def _with_gradients(
    function: Callable[..., object], leaves: list[Tensor], others: list[Tensor]
) -> Callable[[], object]:
    def call() -> object:
        found = function(*leaves, *others)
        outputs = found if isinstance(found, tuple) else (found,)
        return torch.autograd.grad(outputs, leaves, [torch.ones_like(output) for output in outputs])

    return call


def main() -> None:
    """Draws sizes, measures, and prints a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=12, help="sizes for each op")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--op", choices=sorted(OURS), action="append")
    asked = parser.parse_args()
    print(
        f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__},"
    )
    print(f"Python {platform.python_version()}, {time.strftime('%Y-%m-%d', time.gmtime())}; seed {asked.seed}")
    print("| op | rows × width | dtype | forward µs | plain ÷ ours | with gradients µs | plain ÷ ours |")
    print("|---|---|---|---|---|---|---|")
    for op in asked.op or OURS:
        chance = random.Random(f"{asked.seed} {op}")
        ratios: tuple[list[float], list[float]] = [], []
        for _ in range(asked.draws):
            rows, width = round(2 ** chance.uniform(0, 12)), 64 * round(2 ** chance.uniform(0, 6))
            dtype = chance.choice((torch.float32, torch.bfloat16))
            source = torch.Generator().manual_seed(chance.getrandbits(30))
            leaves, others = _calls(op, rows, width, dtype, source)
            with torch.no_grad():
                forward = _ratio(*(partial(side[op], *leaves, *others) for side in (OURS, PLAIN)))
            leaves = [leaf.requires_grad_() for leaf in leaves]
            both = _ratio(*(_with_gradients(side[op], leaves, others) for side in (OURS, PLAIN)))
            for kept, (_, ratio) in zip(ratios, (forward, both), strict=True):
                kept.append(ratio)
            figures = f"{forward[0]:.0f} | {forward[1]:.2f} | {both[0]:.0f} | {both[1]:.2f}"
            print(f"| {op} | {rows}×{width} | {str(dtype).removeprefix('torch.')} | {figures} |", flush=True)
        means = [statistics.geometric_mean(several) for several in ratios]
        print(f"| {op} | geometric mean |  |  | {means[0]:.2f} |  | {means[1]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
