"""What a launch of a compiled kernel costs the host: by portakernel.native, the Triton plugin, CuPy, Triton and torch.

    python benchmarks/launch_overhead.py --device cuda:0 --output benchmarks/results

All add one to 1000 numbers in the same process, in turns, on torch's current stream. The last rows allocate what they
write, and two of them are whole kernels of the Triton plugin, as the dispatcher calls them.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import cupy
import record
import torch
import triton
import triton.language as tl
import typer
from rich.console import Console
from rich.table import Table
from triton.tools.tensor_descriptor import TensorDescriptor

from portakernel.authoring.native import Kernel, Options, Source, Unit
from portakernel.triton_launch.launch import prepared
from portakernel_plugins.triton.add import add
from portakernel_plugins.triton.norms.rms_norm import rms_norm

LAUNCH_US, ALLOCATING_US = 5.0, 7.0
BUDGETS = {
    "portakernel.native": LAUNCH_US,
    "Triton plugin": LAUNCH_US,
    "Triton plugin, two descriptors": LAUNCH_US,
    "Triton plugin, output allocated": ALLOCATING_US,
    "Triton plugin's add": ALLOCATING_US,
    "Triton plugin's rms_norm": ALLOCATING_US,
}
_SIZE, _THREADS, _CALLS = 1000, 256, 100
# Those that do not add one.
_OTHERWISE = ("Triton plugin's rms_norm", "torch.empty_like alone")
_SOURCE = """\
extern "C" __global__ void increase(float* y, const float* x, long long n) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] + 1.0f;
}
"""


@triton.jit
def increase(y, x, n, block: tl.constexpr):
    """The same in Triton."""
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(y + at, tl.load(x + at, mask=at < n) + 1.0, mask=at < n)


@triton.jit
def increase_blocks(y, x, block: tl.constexpr):
    """The same by tensor descriptors."""
    at = tl.program_id(0) * block
    y.store([at], x.load([at]) + 1.0)


def described(tensor: torch.Tensor) -> TensorDescriptor:
    """A descriptor of the whole tensor, by which a program's block of it is copied."""
    return TensorDescriptor(tensor, tensor.shape, tensor.stride(), [_THREADS])


def ways(folder: Path, x: torch.Tensor, y: torch.Tensor) -> dict[str, Callable[[], Any]]:
    """Each way to launch, ready; what it returns is the sum where it is not in ``y``."""
    source = Source(folder, "increase.cu")
    source.path.write_text(_SOURCE, encoding="utf-8")
    ours = Kernel(Unit(source, ("increase",), Options()), ("pointer", "pointer", "int64"))
    grid, block = (-(-_SIZE // _THREADS),), (_THREADS,)
    raw = cupy.RawKernel(_SOURCE, "increase")
    stream = cupy.cuda.ExternalStream(torch.cuda.current_stream(x.device).cuda_stream)
    addresses = y.data_ptr(), x.data_ptr()

    held = prepared(increase, {"block": _THREADS, "num_warps": 4})
    by_blocks = prepared(increase_blocks, {"block": _THREADS, "num_warps": 4})
    source_of, into = described(x), described(y)
    ones, weight = torch.ones_like(x), torch.ones_like(x)

    def with_cupy() -> None:
        with stream:
            raw(grid, block, (*addresses, _SIZE))

    def with_triton() -> None:
        increase[grid](y, x, _SIZE, block=_THREADS)

    def with_triton_by_blocks() -> None:
        increase_blocks[grid](into, source_of, block=_THREADS)

    def allocating() -> torch.Tensor:
        made = torch.empty_like(x)
        held.launch((grid[0], 1), made, x, _SIZE)
        return made

    return {
        "portakernel.native": lambda: ours(grid, block, 0, y, x, _SIZE),
        "Triton plugin": lambda: held.launch((grid[0], 1), y, x, _SIZE),
        "Triton plugin, two descriptors": lambda: by_blocks.launch((grid[0], 1), into, source_of),
        "Triton plugin, both made for the call": lambda: by_blocks.launch((grid[0], 1), described(y), described(x)),
        "Triton's own launch, two descriptors": with_triton_by_blocks,
        "CuPy's RawKernel, addresses": with_cupy,
        "Triton's own launch": with_triton,
        "torch.add, out given": lambda: torch.add(x, ones, out=y),
        "Triton plugin, output allocated": allocating,
        "Triton plugin's add": lambda: add(x, ones),
        "Triton plugin's rms_norm": lambda: rms_norm(x, weight, eps=1e-6),
        "torch.add": lambda: torch.add(x, ones),
        "torch.empty_like alone": lambda: torch.empty_like(x),
    }


def microseconds(call: Callable[[], Any]) -> float:
    """The host's time for a call, of as many as the device's queue holds."""
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(_CALLS):
        call()
    taken = (time.perf_counter() - begun) / _CALLS * 1e6
    torch.cuda.synchronize()
    return taken


def main(
    device: Annotated[str, typer.Option(help="torch device to launch on")] = "cuda:0",
    rounds: Annotated[int, typer.Option(help="how often each takes its turn")] = 50,
    output: Annotated[Path | None, typer.Option(help="folder for the JSON and Markdown results")] = None,
) -> None:
    """Measures, prints a table, and writes it where ``--output`` says."""
    x, y = (torch.randn(_SIZE, device=device) for _ in range(2))
    with tempfile.TemporaryDirectory() as folder, torch.cuda.device(x.device):
        calls = ways(Path(folder), x, y)
        for name, call in calls.items():
            y.zero_()
            made = call()
            if name not in _OTHERWISE:
                torch.testing.assert_close(y if made is None else made, x + 1.0)
        times: dict[str, list[float]] = {name: [] for name in calls}
        for turn in range(rounds + 5):
            for name, call in calls.items():
                taken = microseconds(call)
                if turn >= 5:
                    times[name].append(taken)
    medians = {name: statistics.median(found) for name, found in times.items()}
    table = Table("way", "median µs", "least µs", "÷ torch.add", "budget µs", title="A launch of a compiled kernel")
    for name, median in medians.items():
        budget = str(BUDGETS.get(name, ""))
        table.add_row(name, f"{median:.2f}", f"{min(times[name]):.2f}", f"{median / medians['torch.add']:.2f}", budget)
    Console().print(table)
    if output is not None:
        record.write(output, "launch_overhead", device, {"microseconds": times}, table)


if __name__ == "__main__":
    typer.run(main)
