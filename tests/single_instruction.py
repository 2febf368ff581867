"""One instruction, or a few, assembled by clang and run on given registers: what differential tests compare.

``run_single("gfx942", "v_add_f32 v2, v0, v1", vgprs={0: a, 1: b}).vgpr(2)``: arrays of a value for each lane,
as uint32, int32 or float32. ``finding_kinds`` says what the engine found.
"""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from portakernel.emulation import abi
from portakernel.emulation.arch import ARCHS, Arch
from portakernel.emulation.code_object import LoadedObject
from portakernel.emulation.finding import Kind
from portakernel.emulation.launch import run
from portakernel.emulation.memory import CODE_BASE, Memory
from portakernel.emulation.program import decoded
from portakernel.emulation.record import Record
from portakernel.native.elf import Elf

CLANG = next(filter(None, map(shutil.which, ("clang-22", "clang-21", "clang-20", "clang"))), None)
needs_clang = pytest.mark.skipif(CLANG is None, reason="lacks clang, which assembles AMD's instructions")
# IEEE 754: nearest even, subnormals kept
MODE = 0xF0
_VCC, _EXEC, _M0 = abi.VCC, abi.EXEC, abi.M0


@functools.cache
def assemble(arch: str, text: str) -> bytes:
    """The bytes of the assembly ``text``."""
    assert CLANG is not None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "one.o")
        command = [
            CLANG,
            "-target",
            "amdgcn-amd-amdhsa",
            f"-mcpu={arch}",
            "-x",
            "assembler",
            "-c",
            "-",
            "-o",
            str(path),
        ]
        ran = subprocess.run(command, input=text + "\n", text=True, capture_output=True, check=False)
        assert ran.returncode == 0, ran.stderr
        sections = Elf.read(path.read_bytes()).sections
        return next(section.data for section in sections if section.name == ".text")


@dataclass(frozen=True, slots=True)
class Registers:
    """The first wave's registers after the run, and what was found."""

    arch: Arch
    vector: np.ndarray[Any, Any]
    scalar: np.ndarray[Any, Any]
    scc: bool
    finding_kinds: frozenset[Kind]
    records: tuple[Record, ...]

    def vgpr(self, index: int, kind: Any = np.uint32) -> np.ndarray[Any, Any]:
        """A vector register: a value for each lane."""
        return self.vector[index, : self.arch.wave_size].view(kind)

    def agpr(self, index: int, kind: Any = np.uint32) -> np.ndarray[Any, Any]:
        """An accumulation register."""
        return self.vgpr(256 + index, kind)

    def wide(self, index: int, kind: Any = np.uint64) -> np.ndarray[Any, Any]:
        """Two vector registers as one 64-bit value for each lane."""
        low, high = self.vgpr(index).astype(np.uint64), self.vgpr(index + 1).astype(np.uint64)
        return (low | high << np.uint64(32)).view(kind)

    def sgpr(self, index: int) -> int:
        """A scalar register."""
        return int(self.scalar[index])

    @property
    def vcc(self) -> int:
        """VCC, of as many bits as a wave has lanes."""
        return self.mask(_VCC)

    @property
    def exec(self) -> int:
        """EXEC."""
        return self.mask(_EXEC)

    def mask(self, index: int) -> int:
        """A mask of lanes in scalar registers from ``index`` on."""
        wide = self.arch.wave_size == 64
        return self.sgpr(index) | (self.sgpr(index + 1) << 32 if wide else 0)


def run_single(
    arch: str,
    text: str | Sequence[str],
    *,
    vgprs: Mapping[int, Any] | None = None,
    agprs: Mapping[int, Any] | None = None,
    sgprs: Mapping[int, int] | None = None,
    vcc: int = 0,
    exec_mask: int | None = None,
    m0: int = 0,
    mode: int = MODE,
    lds_bytes: int = 0,
    lds: Sequence[int] | None = None,
    tensors: Mapping[int, Any] | None = None,
) -> Registers:
    """Run assembly on registers: arrays of a value for each lane, or one value for all of them.

    ``tensors``: by number of the scalar register whose pair takes the address. ``lds``: dwords that LDS begins with,
    put there by instructions before the text; clobbers the last two vector registers.
    """
    known, lines = ARCHS[arch], [text] if isinstance(text, str) else list(text)
    before = [
        line
        for at, value in enumerate(lds or ())
        for line in (f"v_mov_b32 v254, {4 * at}", f"v_mov_b32 v255, {value & 0xFFFFFFFF:#x}", _store(arch))
    ]
    code = assemble(arch, "\n".join([*before, *lines, "s_endpgm"]))
    made = decoded(LoadedObject(known, 5, (), code, 0, {}, b"", b""))
    memory = Memory()
    count = 512 if known.table == "cdna" else 256
    state = np.zeros((count * 64 + 128 + 1,), dtype=np.uint32)
    vector, scalar = state[: count * 64].reshape(count, 64), state[count * 64 : count * 64 + 128]
    for base, given in ((0, vgprs or {}), (256, agprs or {})):
        for index, values in given.items():
            filled = np.asarray(values)
            bits = filled.view(np.uint32) if filled.dtype.itemsize == 4 else filled.astype(np.uint32)
            vector[base + index, : known.wave_size] = bits
    full = (1 << known.wave_size) - 1
    for index, value in {**(sgprs or {}), _M0: m0}.items():
        scalar[index] = value & 0xFFFFFFFF
    for index, value in ((_VCC, vcc), (_EXEC, full if exec_mask is None else exec_mask)):
        scalar[index], scalar[index + 1] = value & 0xFFFFFFFF, value >> 32
    for index, tensor in (tensors or {}).items():
        address = memory.add_tensor(tensor, f"s{index}")
        scalar[index], scalar[index + 1] = address & 0xFFFFFFFF, address >> 32
    launch = abi.Launch()
    launch.ops, launch.index_at = ctypes.addressof(made.ops), ctypes.addressof(made.index_at)
    launch.text_base, launch.text_size = CODE_BASE, len(code)
    launch.op_count, launch.flow_count, launch.entry = len(made.records), made.flow_count, 0
    launch.major, launch.minor, launch.stepping = known.version
    launch.wave_size, launch.mode, launch.threads, launch.budget = known.wave_size, mode, 1, 1_000_000
    launch.grid = (abi.U32 * 3)(1, 1, 1)
    launch.block = (abi.U32 * 3)(known.wave_size, 1, 1)
    launch.lds_bytes = max(lds_bytes, 4 * len(lds or ()))
    launch.private_bytes = 256
    launch.registers = state.ctypes.data
    ran = run(made, launch, memory)
    kinds = frozenset(finding.kind for finding in ran.findings)
    return Registers(known, vector, scalar, bool(state[-1]), kinds, made.records)


def _store(arch: str) -> str:
    return "ds_write_b32 v254, v255" if ARCHS[arch].table == "cdna" else "ds_store_b32 v254, v255"
