"""Which instructions the plugins' compiled kernels hold, whether the engine knows them, and which have been executed.

``python tests/emulation/instruction_coverage.py --compile FOLDER`` compiles every Triton and HIP kernel as
``portakernel compile`` does, into caches in FOLDER; without ``--compile`` it reads what lies there. ``--executed FILE``
names a file of lines ``ARCH INSTRUCTION``, as ``PORTAKERNEL_EMULATED_INSTRUCTIONS`` has tests append to.
Prints a line for each target: instructions in kernels, known ones, executed ones; then the unknown ones with the
kernels that hold them.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from portakernel.emulation import EmulationError
from portakernel.emulation.arch import ARCHS
from portakernel.emulation.program import Program, program

PLUGINS = ("hip", "triton")


@dataclass(slots=True)
class Instructions:
    """Of one target: how often each instruction stands in kernels, and for unknown ones in which kernels."""

    arch: str
    counts: Counter[str] = field(default_factory=Counter)
    unknown: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    code_objects: int = 0

    def add(self, made: Program) -> None:
        """The instructions of a code object, up to the padding behind its last one."""
        self.code_objects += 1
        names = ", ".join(made.loaded.kernels)
        for record, handler in zip(made.records, made.handlers, strict=True):
            if record.name == "s_code_end":
                continue
            self.counts[record.name] += 1
            if not handler:
                known_bytes = record.name != "unknown"
                self.unknown[record.name if known_bytes else f"bytes {record.raw.hex()}"].add(names)


def code_objects(folder: Path) -> Iterator[bytes]:
    """The ELF files below a folder, each once: Triton's end in .hsaco, those of native units are called ``code``."""
    seen: set[bytes] = set()
    for path in sorted(folder.rglob("*")):
        if (path.suffix == ".hsaco" or path.name == "code") and path.is_file():
            data = path.read_bytes()
            if data[:4] == b"\x7fELF" and data not in seen:
                seen.add(data)
                yield data


def instructions(folder: Path, arch: str) -> Instructions:
    """What the code objects below ``folder`` hold of ``arch``."""
    made = Instructions(arch)
    for data in code_objects(folder):
        try:
            made.add(program(data, arch))
        except EmulationError as error:
            if "is for" not in str(error):  # a cache holds units for the host, or another target, too
                raise
    return made


def compile_kernels(folder: Path, arch: str) -> None:
    """Compile what the compile gate compiles for ``arch``, a call of each kernel, into caches in ``folder``."""
    environment = os.environ | {
        "TRITON_CACHE_DIR": str(folder / "triton"), "PORTAKERNEL_CACHE_DIR": str(folder / "native"),
    }  # fmt: skip
    for plugin in PLUGINS:
        command = ["portakernel", "compile", "--plugin", plugin, "--target", f"amd:{arch}"]
        subprocess.run(command, env=environment, check=False, stdout=sys.stderr)


def executed(path: Path) -> dict[str, set[str]]:
    """By target: the instructions that tests executed."""
    made: dict[str, set[str]] = defaultdict(set)
    for line in path.read_text(encoding="ascii").splitlines():
        arch, _, name = line.partition(" ")
        made[arch].add(name)
    return made


def main() -> int:
    """The command; its status is 1 where an instruction is unknown, or, with ``--executed``, was not executed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--executed", type=Path)
    parser.add_argument("--target", action="append", choices=list(ARCHS))
    given = parser.parse_args()
    ran = executed(given.executed) if given.executed else {}
    failed = False
    for arch in given.target or ARCHS:
        if given.compile:
            compile_kernels(given.folder / arch, arch)
        made = instructions(given.folder / arch, arch)
        known = set(made.counts) - set(made.unknown) - {"unknown"}
        line = f"{arch}: {made.code_objects} code objects, {len(made.counts)} instructions, {len(known)} known"
        if given.executed:
            line += f", {len(known & ran.get(arch, set()))} executed"
        print(line)
        for name, kernels in sorted(made.unknown.items()):
            print(f"  unknown: {name} ({made.counts[name]} times; {'; '.join(sorted(kernels))})")
        left = known - ran.get(arch, set()) if given.executed else set()
        for name in sorted(left):
            print(f"  not executed: {name}")
        failed |= bool(made.unknown or left)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
