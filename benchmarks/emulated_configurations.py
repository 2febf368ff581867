"""What AMD's entries of the Triton plugin's configurations execute, against others of the same kernel, in the emulator.

    python benchmarks/emulated_configurations.py --target amd:gfx942 --kernel rms_norm.forward

Counts are no times, so only what has as much on its way is compared: a lane holds no more elements than AMD's entries
let it, and there are at least half as many waves. Vectors that every row shares (weights) count once, as each program
reads them anew, out of a cache. Sizes are drawn from a seed. A line for each size: the entry that serves, the one with
the fewest bytes (of these the fewest instructions), and the ratios; those above 1.3 are marked.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch

from portakernel.calling.arguments import Arguments
from portakernel.claims.capability import CannotRun
from portakernel.claims.request import Phase
from portakernel.contract import GridRow
from portakernel.contracts import contract
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.emulation import EmulationError, triton_kernels
from portakernel.registry.kernel import Kernel
from portakernel.runtime import dispatcher
from portakernel.triton_launch.offline import MULTIPROCESSORS, gpu_target
from portakernel.triton_launch.processor import Processor
from portakernel.words.target import Target
from portakernel_kit.bench.operands import Operands, draw
from portakernel_kit.bench.question import questions
from portakernel_kit.cli.run.call import Count, emulated_call
from portakernel_kit.conformance.emulator import Emulator, emulator_of
from portakernel_plugins.triton.launching import configurations
from portakernel_plugins.triton.launching.configurations import bucket, configured, entries

ROWS = 16
# In backward programs stay and take row after row, and each leaves its share of the weight's gradient: few of them.
BACKWARD_ROWS, BACKWARD_MULTIPROCESSORS = 256, 4
# As AMD's entries have it: of rows up to 4096 columns, of longer ones.
MOST_OF_A_LANE = (16, 32)
DIFFERS = 1.3

# By kernel of the file: the op, its phase, and what beside x's shape its call needs.
KERNELS: dict[str, tuple[str, Phase, dict[str, Any]]] = {
    "rms_norm.forward": ("rms_norm", Phase.INFERENCE, {}),
    "rms_norm.backward": ("rms_norm", Phase.BACKWARD, {}),
    "add_rms_norm.forward": ("add_rms_norm", Phase.INFERENCE, {}),
    "add_rms_norm.backward": ("add_rms_norm", Phase.BACKWARD, {}),
    "layer_norm.forward": ("layer_norm", Phase.INFERENCE, {}),
    "layer_norm.backward": ("layer_norm", Phase.BACKWARD, {}),
    "add_layer_norm.forward": ("add_layer_norm", Phase.INFERENCE, {}),
    "softmax.forward": ("softmax", Phase.INFERENCE, {}),
    "softmax.backward": ("softmax", Phase.BACKWARD, {}),
    "silu_and_mul.forward": ("silu_and_mul", Phase.INFERENCE, {}),
    "quantize_fp8.rows": ("quantize_fp8", Phase.INFERENCE, {"granularity": "row"}),
    "rms_norm_quantize": ("rms_norm_quantize", Phase.INFERENCE, {"granularity": "row"}),
}


@dataclass(frozen=True, slots=True)
class Counted:
    """An entry, and what one call of it executes."""

    entry: dict[str, Any]
    count: Count
    workgroups: int
    waves: int
    shared: int

    @property
    def bytes(self) -> int:
        """Bytes loaded and stored, also those of registers that did not suffice; what rows share (``shared``) once."""
        return sum(self.count.loaded.values()) + sum(self.count.stored.values()) - (self.workgroups - 1) * self.shared

    @property
    def instructions(self) -> int:
        """Instructions of waves."""
        return sum(self.count.instructions.values())


def candidates(kernel: str, size: int, target: Processor, element_bytes: int, unit: int) -> Iterator[dict[str, Any]]:
    """The entry that serves ``size``; others, and whole rows, of which a lane holds no more than it may."""
    chosen = configured(kernel, target, bucket(size), element_bytes, unit)
    seen: set[tuple[int, ...]] = set()
    resident = chosen.warps * chosen.programs // target.multiprocessors
    first = {"elements": chosen.elements, "warps": chosen.warps, "blocks": chosen.blocks, "resident_warps": resident}
    most, most_held = 1024 // target.warp_size, MOST_OF_A_LANE[size > 4096]
    one_block = [{"warps": warps} for warps in (1, 2, 4, 8, 16)]
    others = [entry for entry in entries()[kernel] if "always" not in entry]
    for entry in (first, *others, *one_block):
        warps = min(entry["warps"], most)
        key = (max(entry.get("elements", 1), 1), warps, entry.get("blocks", 1), entry.get("resident_warps", warps))
        whole = 1 << (size - 1).bit_length()
        held = max(key[0] * key[2], whole if key[0] == 1 else 0)
        if key in seen or (seen and not 4 <= held // (key[1] * target.warp_size) <= most_held):
            continue
        seen.add(key)
        yield dict(zip(("elements", "warps", "blocks", "resident_warps"), key, strict=True))


def kernel_of(now: Dispatcher, op: str) -> Kernel:
    """The Triton plugin's kernel of ``op``."""
    return now.registry.kernels[f"triton.{op}"]


def counted(now: Dispatcher, emulator: Emulator, kernel: str, entry: dict[str, Any], operands: Operands) -> Counted:
    """What a call executes when ``entry`` is all that the kernel has."""
    op, phase, _ = KERNELS[kernel]
    phases = (phase,) if phase is Phase.INFERENCE else (Phase.TRAINING, Phase.BACKWARD)
    whole = configurations.entries()
    kept = whole[kernel]
    assert isinstance(whole, dict)
    whole[kernel] = [*(one for one in kept if "always" in one), entry]
    configured.cache_clear()
    try:
        few = BACKWARD_MULTIPROCESSORS if phase is Phase.BACKWARD else MULTIPROCESSORS
        with patch.object(triton_kernels, "MULTIPROCESSORS", few):
            launches = emulated_call(now, kernel_of(now, op), emulator, operands, phases)[-1].launches
    finally:
        whole[kernel] = kept
        configured.cache_clear()
    workgroups = max(math.prod(one.grid) for one in launches)
    waves = max(math.prod((*one.grid, *one.block)) for one in launches) // gpu_target(emulator.target).warp_size
    shared = sum(t.numel() * t.element_size() for t in operands.tensors if t is not None and t.dim() == 1)
    return Counted(entry, Count.of(launches), workgroups, waves, shared)


def operands_of(now: Dispatcher, kernel: str, size: int, target: Target, dtype: str) -> Operands:
    """Drawn arguments of a call with rows of ``size``."""
    op, _, values = KERNELS[kernel]
    width = 2 * size if op == "silu_and_mul" else size
    rows = BACKWARD_ROWS if KERNELS[kernel][1] is Phase.BACKWARD else ROWS
    row = GridRow("configurations", {"x": (rows, width)}, values)
    arguments = Arguments(contract(op), now.registry)
    question = questions(op, [row], [dtype], now.registry.target(str(target)))[0]
    return draw(question, arguments, torch.device("cpu"), seed=size)


def sizes(seed: int, count: int) -> list[int]:
    """Row lengths, multiples of 16 from 256 to 32768: one drawn of each of ``count`` parts, as wide in logarithms."""
    source = random.Random(seed)
    return [16 * round(2 ** (4 + 7 * (part + source.random()) / count)) for part in range(count)]


def main() -> None:
    """Prints the lines, and writes all counts as JSON lines where ``--json`` names a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True)
    parser.add_argument("--kernel", action="append", choices=sorted(KERNELS))
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--seed", type=int, default=28)
    parser.add_argument("--sizes", type=int, default=6)
    parser.add_argument("--json", default="")
    given = parser.parse_args()
    now = dispatcher()
    target = now.registry.target(given.target)
    processor = Processor(target.arch, MULTIPROCESSORS, gpu_target(target).warp_size)
    out = open(given.json, "a", encoding="utf-8") if given.json else None  # noqa: SIM115 - open as long as the process
    for kernel in given.kernel or KERNELS:
        emulator = emulator_of(now, kernel_of(now, KERNELS[kernel][0]), target)
        if isinstance(emulator, str):
            sys.exit(emulator)
        for size in sizes(given.seed, given.sizes):
            operands = operands_of(now, kernel, size, target, given.dtype)
            rows: list[Counted] = []
            for entry in candidates(kernel, size, processor, {"float32": 4}.get(given.dtype, 2), 16):
                try:
                    rows.append(counted(now, emulator, kernel, entry, operands))
                except (CannotRun, EmulationError) as error:
                    print(f"  {kernel} {size} {entry}: {error}", file=sys.stderr)
                    continue
                if out is not None:
                    head = {"target": str(target), "kernel": kernel, "size": size, "dtype": given.dtype, "entry": entry}
                    out.write(json.dumps({**head, **rows[-1].count.to_json()}) + "\n")
                    out.flush()
            if not rows:
                continue
            as_many = [one for one in rows if 2 * one.waves >= rows[0].waves]
            least = min(one.bytes for one in as_many)
            best = min((one for one in as_many if one.bytes <= 1.05 * least), key=lambda one: one.instructions)
            of_bytes, of_instructions = rows[0].bytes / best.bytes, rows[0].instructions / best.instructions
            mark = "  <--" if max(of_bytes, of_instructions) > DIFFERS else ""
            print(
                f"{target} {kernel} {size}: {rows[0].entry} bytes x{of_bytes:.2f} instructions x{of_instructions:.2f}"
                f" of {best.entry}{mark}",
                flush=True,
            )


if __name__ == "__main__":
    main()
