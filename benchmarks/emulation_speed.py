"""How many lane instructions the emulator executes in a second on one core: python benchmarks/emulation_speed.py."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from emulated_kernels import ARCHS, compiled, rms_norm, wave_size

from portakernel.emulation import emulate

ROWS, COLUMNS = 256, 4096


def main() -> None:
    """Prints a line for each architecture."""
    x, weight = torch.randn(ROWS, COLUMNS), torch.randn(COLUMNS)
    for arch in sys.argv[1:] or ARCHS:
        out = torch.empty_like(x)
        types = ("*fp32", "*fp32", "*fp32", "i32", "fp32")
        code, shared = compiled(rms_norm, types, (("BLOCK", COLUMNS),), arch)
        arguments = [x, weight, out, COLUMNS, 1e-6, None, None]
        block = (4 * wave_size(arch),)

        def run(rows: int) -> float:
            begin = time.process_time()
            ran = emulate(code, "rms_norm", (rows,), block, arguments, arch, dynamic_lds=shared, threads=1)  # noqa: B023
            seconds = time.process_time() - begin
            return ran.counts.lane_instructions / seconds / 1e6

        run(1)  # decodes, and compiles the engine where it has to
        print(f"{arch}: {run(ROWS):.0f} million lane instructions a second on one core")


if __name__ == "__main__":
    main()
