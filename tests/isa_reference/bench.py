"""Cases assembled together, run one by one on the engine, and every register and byte compared with the reference."""

from __future__ import annotations

import ctypes
import random
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from single_instruction import CLANG

from isa_reference import floats
from isa_reference.cases import BUFFER_BYTES, LDS_BYTES, PRIVATE_BYTES
from isa_reference.documents import TABLES, pseudocode
from isa_reference.execute import constant, execute
from isa_reference.floats import F16, F32, F64, Format
from isa_reference.state import EXEC, M0, VCC, Case, Operand, State
from portakernel.emulation import abi
from portakernel.emulation.arch import ARCHS
from portakernel.emulation.build import engine, handler
from portakernel.emulation.decoder import decode
from portakernel.emulation.memory import CODE_BASE
from portakernel.emulation.record import Record
from portakernel.native.elf import Elf

BASE = 0x10_0000_0000
_VECTORS, _HELD = 250, 200  # prelude and epilogue: lane addresses, LDS and private memory as registers
_ERROR = re.compile(r"^<stdin>:(\d+):\d+: error", re.MULTILINE)


def assembled(arch: str, lines: Sequence[str]) -> tuple[bytes, set[int]]:
    """The code of the lines that the assembler takes, and the numbers of those that it does not."""
    assert CLANG is not None
    bad: set[int] = set()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "many.o")
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
        for _ in range(4):
            text = "\n".join("" if i in bad else line for i, line in enumerate(lines)) + "\n"
            ran = subprocess.run(command, input=text, text=True, capture_output=True, check=False)
            if ran.returncode == 0:
                sections = Elf.read(path.read_bytes()).sections
                return next(section.data for section in sections if section.name == ".text"), bad
            found = {int(number) - 1 for number in _ERROR.findall(ran.stderr)}
            assert found - bad, ran.stderr[:2000]
            bad |= found
    raise AssertionError(f"the assembler refuses more each time: {len(bad)} lines")


def _dword(arch: str, what: str) -> str:
    cdna = ARCHS[arch].table == "cdna"
    return {
        "ds_store": "ds_write_b32" if cdna else "ds_store_b32",
        "ds_load": "ds_read_b32" if cdna else "ds_load_b32",
        "scratch_store": "scratch_store_dword" if cdna else "scratch_store_b32",
        "scratch_load": "scratch_load_dword" if cdna else "scratch_load_b32",
    }[what]


def surrounded(case: Case) -> tuple[list[str], list[str]]:
    """What fills LDS or private memory from registers before the instruction, and what takes it out behind it."""
    lanes = case.lanes
    to_exec = "s_mov_b64 exec, s[90:91]" if lanes == 64 else "s_mov_b32 exec_lo, s90"
    all_on = "s_mov_b64 exec, -1" if lanes == 64 else "s_mov_b32 exec_lo, -1"
    if case.encoding == "DS" and "VGPR[" not in case.pseudocode:
        count, step = LDS_BYTES // (4 * lanes), 4 * lanes
        store, load = (_dword(case.arch, f"ds_{what}") for what in ("store", "load"))
        before = [f"{store} v{_VECTORS}, v{_HELD + i} offset:{step * i}" for i in range(count)]
        after = [f"{load} v{_HELD + i}, v{_VECTORS} offset:{step * i}" for i in range(count)]
        return [*before, to_exec], [all_on, *after]
    if "SCRATCH" in case.encoding:
        count = PRIVATE_BYTES // 4
        store, load = (_dword(case.arch, f"scratch_{what}") for what in ("store", "load"))
        before = ["v_mov_b32 v249, 0", *(f"{store} v249, v{_HELD + i}, off offset:{4 * i}" for i in range(count))]
        after = ["v_mov_b32 v249, 0", *(f"{load} v{_HELD + i}, v249, off offset:{4 * i}" for i in range(count))]
        return [*before, to_exec], [all_on, *after]
    return [], []


@dataclass(slots=True)
class Batch:
    """Assembled cases of one architecture; ``refused`` are those that the assembler knows no such form of."""

    arch: str
    cases: list[Case]
    refused: list[Case]
    entries: list[int]
    records: tuple[Record, ...]
    flow: int
    ops: Any = None
    index_at: Any = None
    size: int = 0
    buffers: list[Any] = field(default_factory=list)

    @classmethod
    def of(cls, arch: str, drawn: Iterable[Case]) -> Batch:
        """Assemble cases, each between an entry and an end of program."""
        given = list(drawn)
        pairs = [(case, text) for case in given for text in case.texts]
        _, bad = assembled(arch, [text for _, text in pairs])
        good: dict[int, str] = {}
        for i, (case, text) in enumerate(pairs):
            if i not in bad:
                good.setdefault(id(case), text)
        taken = [case for case in given if id(case) in good]
        lines: list[str] = []
        for case in taken:
            case.text = good[id(case)]
            before, after = surrounded(case)
            lines += [*case.before, *before, case.text, *after, *case.after, "s_endpgm"]
        code, bad = assembled(arch, lines)
        assert not bad, [lines[i] for i in sorted(bad)][:3]
        flow, halves = decode(code, ARCHS[arch])
        records = (*flow, *halves)
        ends = [i for i, one in enumerate(flow) if one.name == "s_endpgm"]
        entries = [0, *(i + 1 for i in ends)][: len(taken)]
        assert len(ends) >= len(taken)
        made = cls(arch, taken, [c for c in given if id(c) not in good], entries, records, len(flow))
        made.pack(handler, code)
        return made

    def pack(self, number: Callable[[str], int], code: bytes) -> None:
        """The records as the engine takes them."""
        numbers = (0 if one.name == "unknown" else number(one.name) for one in self.records)
        packed = b"".join(one.pack(n) for one, n in zip(self.records, numbers, strict=True))
        self.ops, self.size = ctypes.create_string_buffer(packed, len(packed)), len(code)
        self.index_at = (ctypes.c_int32 * (len(code) // 4))(*([-1] * (len(code) // 4)))
        for index, one in enumerate(self.records[: self.flow]):
            self.index_at[one.offset // 4] = index
        self.buffers = [(abi.U64 * len(self.records))() for _ in range(5)]

    def knows(self, case: Case) -> bool:
        """Whether the engine has a handler for the case's instruction."""
        return handler(case.name) != 0

    def run(self, at: int, state: State, library: Any = None) -> tuple[State, list[abi.RawFinding]]:
        """The state that the engine leaves, and its findings."""
        case, known = self.cases[at], ARCHS[self.arch]
        count = 512 if known.table == "cdna" else 256
        held = np.zeros((count * 64 + 129,), dtype=np.uint32)
        vector, scalar = held[: count * 64].reshape(count, 64), held[count * 64 : count * 64 + 128]
        vector[:, : state.lanes] = state.vector[:count, : state.lanes]
        scalar[:] = state.scalar
        if surrounded(case)[0]:
            _fill_held(case, state, vector)
            scalar[90], scalar[91] = scalar[EXEC], scalar[EXEC + 1]
            scalar[EXEC] = scalar[EXEC + 1] = 0xFFFFFFFF
            if state.lanes == 32:
                scalar[EXEC + 1] = 0
        memory = (ctypes.c_uint8 * len(state.memory)).from_buffer_copy(state.memory)
        regions = (abi.Region * 2)(
            abi.Region(BASE, len(memory), ctypes.addressof(memory), 0, 1, 0),
            abi.Region(CODE_BASE, self.size, ctypes.addressof(self.ops), 0, 0, 1),
        )
        launch = abi.Launch()
        launch.ops, launch.index_at = ctypes.addressof(self.ops), ctypes.addressof(self.index_at)
        launch.text_base, launch.text_size = CODE_BASE, self.size
        launch.op_count, launch.flow_count, launch.entry = len(self.records), self.flow, self.entries[at]
        launch.major, launch.minor, launch.stepping = known.version
        launch.wave_size, launch.mode, launch.threads, launch.budget = known.wave_size, case.mode, 1, 100_000
        launch.grid, launch.block = (abi.U32 * 3)(1, 1, 1), (abi.U32 * 3)(known.wave_size, 1, 1)
        launch.lds_bytes, launch.private_bytes = LDS_BYTES, 256
        launch.registers = held.ctypes.data
        launch.regions, launch.region_count = ctypes.addressof(regions), 1
        findings = (abi.RawFinding * 16)()
        launch.findings, launch.finding_capacity = ctypes.addressof(findings), 16
        launch.executed, launch.lanes, launch.conflicts, launch.moved, launch.lds_moved = map(
            ctypes.addressof, self.buffers
        )
        assert (library or engine()).emulate(ctypes.byref(launch)) == 0
        made = State(state.lanes, np.zeros_like(state.vector), scalar.copy(), int(held[-1]), bytearray(memory), BASE)
        made.vector[:count] = vector
        if surrounded(case)[0]:
            _take_held(case, state, made, vector)
        return made, list(findings[: launch.finding_count])


def _fill_held(case: Case, state: State, vector: npt.NDArray[np.uint32]) -> None:
    lanes = state.lanes
    if case.encoding == "DS":
        vector[_VECTORS, :lanes] = np.arange(lanes) * 4
        words = np.frombuffer(bytes(state.lds), dtype=np.uint32).reshape(-1, lanes)
        vector[_HELD : _HELD + len(words), :lanes] = words
    else:
        for lane, private in enumerate(state.private):
            vector[_HELD : _HELD + PRIVATE_BYTES // 4, lane] = np.frombuffer(bytes(private), dtype=np.uint32)


def _take_held(case: Case, state: State, made: State, vector: npt.NDArray[np.uint32]) -> None:
    """Memory out of the registers that it was read into; those and EXEC are as they were then."""
    lanes = state.lanes
    if case.encoding == "DS":
        count = LDS_BYTES // (4 * lanes)
        made.lds = bytearray(np.ascontiguousarray(vector[_HELD : _HELD + count, :lanes]).tobytes())
    else:
        count = PRIVATE_BYTES // 4
        made.private = [
            bytearray(np.ascontiguousarray(vector[_HELD : _HELD + count, lane]).tobytes()) for lane in range(lanes)
        ]
    made.vector[_HELD : _VECTORS + 1] = state.vector[_HELD : _VECTORS + 1]
    made.scalar[90:92], made.scalar[EXEC : EXEC + 2] = state.scalar[90:92], state.scalar[EXEC : EXEC + 2]


_EDGES = {
    "f32": (0, 0x80000000, 0x3F800000, 0xBF800000, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7FA00000, 1, 0x80000001,
            0x7FFFFF, 0x800000, 0x7F7FFFFF, 0x4F000000, 0xCF000000, 0x4F800000, 0x3F000000, 0x3EFFFFFF, 0x40200000,
            0x3FC00000, 0x477FE000, 0x477FF000, 0x33000000, 0x33000001, 0x38800000, 0x387FC000, 0x42FE0000, 0xC2FE0000,
            0x3F7FFFFF, 0xB3000000),
    "f16": (0, 0x8000, 0x3C00, 0xBC00, 0x7C00, 0xFC00, 0x7E00, 0x7D00, 1, 0x8001, 0x3FF, 0x400, 0x7BFF, 0x3800, 0x3801,
            0x4100),
    "f64": (0, 1 << 63, 0x3FF0000000000000, 0xBFF8000000000000, 0x7FF0000000000000, 0xFFF0000000000000,
            0x7FF8000000000000, 0x7FF4000000000000, 1, 0x8000000000000001, 0xFFFFFFFFFFFFF, 0x10000000000000,
            0x7FEFFFFFFFFFFFFF, 0x41E0000000000000, 0xC1E0000000000000, 0x3FE0000000000000, 0x36A0000000000000,
            0x47EFFFFFF0000000, 0x3FF0000010000000),
    "bf16": (0, 0x8000, 0x3F80, 0xBF80, 0x7F80, 0xFF80, 0x7FC0, 1, 0x8001, 0x7F, 0x80, 0x7F7F, 0x4000, 0x3F81),
    "integer": (0, 1, 2, 31, 32, 33, 63, 64, 255, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF,
                0x80000001),
}  # fmt: skip


def drawn_value(draw: random.Random, operand: Operand) -> int:
    """A value of an operand's type: an edge, or near 1, or any bits."""
    kind = _kind(operand)
    if kind in ("f16", "bf16", "integer16"):
        return _drawn(draw, kind, 16) | _drawn(draw, kind, 16) << 16
    if operand.words > 1 and kind != "f64":
        return sum(_drawn(draw, kind, 32) << 32 * i for i in range(operand.words))
    return _drawn(draw, kind, 64 if kind == "f64" else 32)


def _drawn(draw: random.Random, kind: str, width: int) -> int:
    turn = draw.random()
    edges = _EDGES["integer" if kind == "integer16" else kind]
    if turn < 0.4:
        return draw.choice(edges) & ((1 << width) - 1)
    if turn < 0.75 and kind.startswith(("f", "b")):
        form = floats.FORMATS[kind]
        return floats.from_python(draw.gauss(0, 1) * 2.0 ** draw.randint(-6, 8), form)
    if turn < 0.6:
        return draw.randrange(-64, 64) & ((1 << width) - 1)
    return draw.getrandbits(width)


def _kind(operand: Operand) -> str:
    form = operand.form
    if "BF16" in form:
        return "bf16"
    if "F16" in form:
        return "f16"
    if "F64" in form:
        return "f64"
    if "F32" in form:
        return "f32"
    return "integer16" if "16" in form else "integer"


def initial(case: Case) -> State:
    """Registers and memory drawn for a case: the whole state is random, sources are of their types."""
    draw = random.Random(case.seed)
    generator = np.random.default_rng(case.seed)
    lanes = case.lanes
    state = State(lanes, np.zeros((512, 64), dtype=np.uint32), np.zeros(128, dtype=np.uint32))
    state.base = BASE
    state.vector[:256, :lanes] = generator.integers(0, 1 << 32, (256, lanes), dtype=np.uint32)
    state.scalar[:100] = generator.integers(0, 1 << 32, 100, dtype=np.uint32)
    state.memory = bytearray(generator.bytes(BUFFER_BYTES))
    state.lds = bytearray(generator.bytes(LDS_BYTES))
    state.private = [bytearray(generator.bytes(PRIVATE_BYTES)) for _ in range(lanes)]
    state.scc = 0
    state.scalar[M0] = draw.getrandbits(2) if "M0" in case.pseudocode else draw.getrandbits(32)
    state.set_scalars(VCC, lanes // 32, draw.getrandbits(lanes))
    state.set_scalars(EXEC, lanes // 32, case.exec_mask)
    for one in filter(None, (case, case.second)):
        for name, operand in one.operands.items():
            if operand.kind == "v" and name not in ("addr", "vaddr"):
                for lane in range(lanes):
                    state.set_vectors(operand.index, lane, operand.words, drawn_value(draw, operand))
            elif operand.kind == "s" and name not in ("sbase", "saddr", "rsrc", "soffset"):
                state.set_scalars(operand.index, operand.words, drawn_value(draw, operand))
    _addresses(case, state, draw)
    return state


def _addresses(case: Case, state: State, draw: random.Random) -> None:
    """Where lanes load and store: aligned, each lane at places of its own but for atomics."""
    lanes = state.lanes
    state.set_scalars(64, 2, BASE)
    # atomics of 64 bits are taken at multiples of 8 alone
    state.scalar[66], state.scalar[67], state.scalar[68] = BUFFER_BYTES - 64, 0x00027000, 8 * draw.randrange(3)
    own = list(range(lanes))
    draw.shuffle(own)
    atomic = "atomic" in case.name or any(
        part in case.name for part in ("_add", "_sub", "_min", "_max", "_inc", "_dec", "cmp")
    )
    if atomic:
        own = [draw.randrange(8) for _ in range(lanes)]
    if case.encoding == "DS":
        at = 56
        for lane in range(lanes):
            step = (
                4 * max(1, case.operands.get("data0", case.operands.get("vdst")).words)
                if "64" in case.name.split("_b")[0]
                else 32
            )
            state.vector[at, lane] = own[lane] * step if "VGPR[" not in case.pseudocode else draw.getrandbits(9)
    elif "SCRATCH" in case.encoding:
        state.scalar[68] = 4 * draw.randrange(3)
        state.vector[56, :lanes] = [4 * draw.randrange(3) for _ in range(lanes)]
    elif case.encoding in ("MUBUF", "VBUFFER"):
        for lane in range(lanes):
            far = draw.random() < 0.1 and not atomic
            state.vector[56, lane] = BUFFER_BYTES + 16 * lane if far else own[lane] * 32
    elif "vaddr" in case.operands:
        for lane in range(lanes):
            offset = own[lane] * 32
            state.set_vectors(
                56, lane, case.operands["vaddr"].words, offset + (BASE if case.operands["vaddr"].bits == 64 else 0)
            )


# How far results may be from the reference in units, where the documents give the unit a bound or none.
UNITS = {
    "v_exp_f32": 1, "v_log_f32": 1, "v_rcp_f32": 1, "v_rsq_f32": 1, "v_sqrt_f32": 1, "v_sin_f32": -1, "v_cos_f32": -1,
    "v_rcp_iflag_f32": 1, "v_exp_legacy_f32": 1, "v_log_legacy_f32": 1, "v_exp_f16": 1, "v_log_f16": 1, "v_rcp_f16": 1,
    "v_rsq_f16": 1, "v_sqrt_f16": 1, "v_sin_f16": -1, "v_cos_f16": -1, "v_rcp_f64": 1 << 29, "v_rsq_f64": 1 << 29,
    "v_sqrt_f64": 1 << 29,
}  # fmt: skip


def difference(case: Case, expected: State, got: State) -> str:
    """What differs, in words; empty where nothing does."""
    result = case.operands.get("vdst") or case.operands.get("vdata")
    both = [(case, result)] + ([(case.second, case.second.operands.get("vdst"))] if case.second else [])
    unlike = np.argwhere(expected.vector != got.vector)
    for register, lane in unlike:
        owner = next(
            (
                o
                for o in both
                if o[1] is not None and o[1].kind == "v" and o[1].index <= register < o[1].index + o[1].words
            ),
            None,
        )
        if owner is None or not _close(owner[0], owner[1], expected, got, int(lane)):
            values = [int(state.vector[register, lane]) for state in (got, expected)]
            return f"v{register} lane {lane}: {values[0]:#x}, not {values[1]:#x}"
    for at in np.flatnonzero(expected.scalar != got.scalar):
        if at == EXEC + 1 and case.lanes == 32:
            continue
        to = case.operands.get("sdst", result)
        if (
            to is not None
            and to.is_float
            and to.index == at
            and _same_scalar(case, to, int(expected.scalar[at]), int(got.scalar[at]))
        ):
            continue
        return f"s{at}: {int(got.scalar[at]):#x}, not {int(expected.scalar[at]):#x}"
    if expected.scc != got.scc:
        return f"scc: {got.scc}, not {expected.scc}"
    if expected.memory != got.memory:
        at = next(i for i, (a, b) in enumerate(zip(expected.memory, got.memory, strict=True)) if a != b)
        if not _same_memory(case, expected.memory, got.memory):
            return f"memory at {at}: {got.memory[at]:#x}, not {expected.memory[at]:#x}"
    if (
        case.encoding == "DS"
        and surrounded(case)[0]
        and expected.lds != got.lds
        and not _same_memory(case, expected.lds, got.lds)
    ):
        at = next(i for i, (a, b) in enumerate(zip(expected.lds, got.lds, strict=True)) if a != b)
        return f"LDS at {at}: {got.lds[at]:#x}, not {expected.lds[at]:#x}"
    if "SCRATCH" in case.encoding and expected.private != got.private:
        return "private memory differs"
    return ""


def _same_memory(case: Case, expected: bytearray, got: bytearray) -> bool:
    """Floats in memory: NaNs are alike."""
    form = (
        F64
        if "f64" in case.name
        else floats.BF16
        if "bf16" in case.name
        else F16
        if "f16" in case.name
        else F32
        if "f32" in case.name
        else None
    )
    if form is None:
        return False
    size = form.width // 8
    for at in range(0, len(expected), size):
        a, b = (int.from_bytes(part[at : at + size], "little") for part in (expected, got))
        if a != b and not (floats.is_nan(a, form) and floats.is_nan(b, form)):
            return False
    return True


def _close(case: Case, result: Operand, expected: State, got: State, lane: int) -> bool:
    a, b = (state.vectors(result.index, lane, result.words) for state in (expected, got))
    units = UNITS.get(case.name, 0)
    form = _result_format(case, result)
    if form is None:
        return False
    if case.name.startswith(("v_sin", "v_cos")) and _beyond(case, expected, lane):
        return True
    if case.sdwa and form is F16 and case.sdwa[0] == "WORD_1":
        low = a & 0xFFFF == b & 0xFFFF
        return low and _same_float(a >> 16, b >> 16, form, units)
    if form is F16 or form is floats.BF16 or (result.words == 2 and form is F32):
        size = form.width
        count = result.words * 32 // size
        return all(
            _same_float(
                a >> size * i & ((1 << size) - 1),
                b >> size * i & ((1 << size) - 1),
                form,
                units,
                zeros="med3" in case.name,
            )
            for i in range(count)
        )
    return _same_float(a, b, form, units, zeros="med3" in case.name)


def _beyond(case: Case, state: State, lane: int) -> bool:
    """Whether a sine's argument may be beyond 256 turns, where no document gives a result."""
    return (
        True
        if case.dpp or case.sdwa or case.operands["src0"].index == case.operands["vdst"].index
        else _is_far(case, state, lane)
    )


def _is_far(case: Case, state: State, lane: int) -> bool:
    operand = case.operands["src0"]
    form = F16 if operand.bits == 16 else F32
    if operand.kind == "c":
        bits = constant(operand)
    elif operand.kind == "s":
        bits = state.scalars(operand.index, 1)
    else:
        bits = state.vectors(operand.index, lane, 1)
    bits = (bits >> 16 if operand.high else bits) & ((1 << form.width) - 1)
    return not abs(floats.to_python(bits, form)) <= 256


def _same_scalar(case: Case, result: Operand, a: int, b: int) -> bool:
    units = UNITS.get(case.name.replace("v_s_", "v_"), 0)
    if _result_format(case, result) is F16:  # the other half is no number
        return a >> 16 == b >> 16 and _same_float(a & 0xFFFF, b & 0xFFFF, F16, units)
    return _same_float(a, b, F32, units)


def _result_format(case: Case, result: Operand) -> Format | None:
    """The format of a float result, which its operand names or, of memory, the instruction."""
    by_operand = result.form != "FMT_ANY"
    text = result.form.lower() if by_operand else case.name
    forms = {"bf16": floats.BF16, "f16": F16, "f64": F64, "f32": F32}
    return next((form for name, form in forms.items() if name in text), None)


def _same_float(a: int, b: int, form: Format, units: int, *, zeros: bool = False) -> bool:
    if floats.is_nan(a, form) and floats.is_nan(b, form):
        return True
    if a == b:
        return True
    if zeros and a & ~form.sign == b & ~form.sign == 0:
        return True
    if floats.is_nan(a, form) or floats.is_nan(b, form) or not units:
        return False
    if units < 0:  # sine and cosine: an absolute bound, as the documents' argument is rounded
        x, y = floats.to_python(a, form), floats.to_python(b, form)
        return abs(x - y) <= 2.0 ** (-8 if form is F16 else -17)
    return abs(floats.order(a, form) - floats.order(b, form)) <= units


def check(batch: Batch, at: int, library: Any = None) -> str:
    """What differs between the engine and the reference in one case; empty where nothing does."""
    case = batch.cases[at]
    state = initial(case)
    codes = pseudocode(TABLES[case.arch])
    expected = execute(case, state, codes.get)
    got, findings = batch.run(at, state, library)
    if findings:
        return f"findings: {[abi_kind(one) for one in findings]}"
    if surrounded(case)[0]:
        expected.vector[_HELD : _VECTORS + 1] = state.vector[_HELD : _VECTORS + 1]
    return difference(case, expected, got)


def abi_kind(finding: abi.RawFinding) -> int:
    return int(finding.kind)
