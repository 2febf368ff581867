"""Instructions drawn with operands: every encoding plain, in place, with constants, modifiers, permutations, modes."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from isa_reference.documents import TABLES, Instruction
from isa_reference.execute import selects_itself
from isa_reference.state import SELECTS, Case, Operand

VECTOR_AT = {
    "src0": 8, "src1": 16, "vsrc1": 16, "src2": 24, "vdst": 32, "data0": 40, "data1": 48, "data": 40, "vsrc": 40,
    "vdata": 40, "vaddr": 56, "addr": 56,
}  # fmt: skip
SCALAR_AT = {
    "src0": 8, "src1": 10, "src2": 12, "ssrc0": 16, "ssrc1": 20, "sdst": 32, "vdst": 32, "sbase": 64, "saddr": 64,
    "srsrc": 64, "rsrc": 64, "soffset": 68, "sdata": 32,
}  # fmt: skip
BUFFER_BYTES, LDS_BYTES, PRIVATE_BYTES = 4096, 4096, 64
INTEGERS = (0, 1, 5, 31, 32, 63, 64, -1, -16)
FLOATS = (0.5, -0.5, 1.0, -1.0, 2.0, -2.0, 4.0, -4.0)
# Whether MODE makes zeros of these' subnormals, or rounds the sum in v_cvt_rpi, no document says.
NO_MODES = (
    "v_pack_b32_f16",
    "v_cvt_pkrtz",
    "v_cvt_pk_rtz",
    "v_cndmask",
    "v_cvt_rpi",
    "v_cvt_nearest_i32",
    "v_cvt_scalef32",
)


def cases(arch: str, one: Instruction, seed: int, rounds: int = 1) -> Iterator[Case]:
    """Drawn cases of an instruction for an architecture; the assembler decides which of them exist there."""
    draw = random.Random(f"{arch} {one.text} {one.encoding} {seed}")
    for turn in range(rounds):
        for case in _drawn(arch, one, draw):
            case.seed = draw.getrandbits(32)
            case.variant += f" {turn}" if turn else ""
            if case.exec_mask == -1:
                case.exec_mask = (1 << case.lanes) - 1
            yield case


def _drawn(arch: str, one: Instruction, draw: random.Random) -> Iterator[Case]:
    if one.encoding in ("VOP1", "VOP2", "VOP3", "VOP3SD", "VOPC", "VOP3P"):
        yield from _vector(arch, one, draw)
    elif one.encoding in ("SOP1", "SOP2", "SOPC", "SOPK"):
        yield from _scalar(arch, one, draw)
    elif one.encoding == "SMEM":
        yield from _scalar_memory(arch, one, draw)
    elif one.encoding == "DS":
        yield from _lds(arch, one, draw)
    else:
        yield from _memory(arch, one, draw)


def _lanes(arch: str) -> int:
    return 64 if arch.startswith("gfx9") else 32


def _some(draw: random.Random, arch: str) -> int:
    """A mask of lanes, of which some are off."""
    return draw.getrandbits(_lanes(arch)) | 1 << draw.randrange(_lanes(arch))


# Vector


def _vector(arch: str, one: Instruction, draw: random.Random) -> Iterator[Case]:
    base = _base(arch, one)
    if base is None or one.name.startswith("v_movrelsd") or one.name == "v_movreld_b32":
        return
    is_float = any("_F" in form for form, _, _ in one.fields.values())
    if one.name.startswith("v_div_scale"):  # the first source is one of the others
        other = base.operands[draw.choice(("src1", "src2"))]
        base = replace(base, operands={**base.operands, "src0": replace(base.operands["src0"], index=other.index)})
        for mode in (0xF0, 0xF1 | 1 << 2, 0xF3 | 3 << 2):
            yield _texted(replace(base, mode=mode, variant=f"mode {mode:#x}"))
        return
    yield _texted(replace(base, variant="vectors"))
    in_place = _in_place(base)
    if in_place is not None:
        yield _texted(replace(in_place, variant="in place, some lanes", exec_mask=_some(draw, arch)))
    once = "VGPR[" in one.pseudocode and "laneId" not in one.pseudocode
    if "VGPR[laneId]" in one.pseudocode:  # registers by M0: never beyond those that are there
        yield _texted(replace(base, variant="some lanes", exec_mask=_some(draw, arch)))
        return
    for kind in ("integer", "float", "scalar", "literal"):
        if (case := _with_constant(base, kind, draw)) is not None and not (once and kind != "scalar"):
            yield _texted(replace(case, variant=f"{kind} source"))
    if once:
        if one.name.startswith(("v_permlane16", "v_permlanex16")):  # whether inactive lanes are read, op_sel says
            return
        yield _texted(replace(base, variant="some lanes", exec_mask=_some(draw, arch)))
        return
    if one.encoding in ("VOP3", "VOP3SD"):
        for _ in range(2):
            yield _texted(_with_signs(base, draw, "neg and abs"))
        clamps_integers = any(part in one.name for part in ("_add_", "_sub_", "_subrev_", "_mad_")) and not any(
            part in one.name for part in ("legacy", "64")
        )
        if (is_float or clamps_integers) and not one.name.startswith(("v_pack", "v_cmp")):
            yield _texted(replace(base, clamp=True, variant="clamp"))
        if "vdst" in base.operands and base.operands["vdst"].has_sign and "_cvt_pk" not in one.name:
            yield _texted(replace(base, omod=draw.choice((1, 2, 3)), clamp=draw.random() < 0.3, variant="omod"))
        if any(bits == 16 for _, bits, _ in one.fields.values()) and not selects_itself(base):
            for _ in range(3):
                yield _texted(_with_halves(base, draw))
    if "OPSEL[" in one.pseudocode and one.encoding != "VOP3P":
        for _ in range(3):
            yield _texted(replace(base, select=_parts(one, draw), variant="op_sel"))
    if "TTBL" in one.pseudocode:
        for _ in range(4):
            yield _texted(replace(base, bitop=draw.randrange(1, 256), variant="bitop3"))
    if one.encoding == "VOP3P":
        for _ in range(4):
            yield _texted(_with_packed(base, draw))
        if "mul_lo" not in one.name:
            yield _texted(replace(base, clamp=True, variant="clamp"))
    if one.encoding in ("VOP1", "VOP2", "VOPC"):
        yield from _permuted(arch, base, draw)
        if arch.startswith("gfx9"):
            for _ in range(3):
                yield _texted(_with_sdwa(base, draw))
    if is_float and not one.name.startswith(NO_MODES):
        for mode in (0xF1 | 1 << 2, 0xF2 | 2 << 2, 0xF3 | 3 << 2, 0x00, 0x30, 0xC0, 0x50):
            yield _texted(replace(base, mode=mode, variant=f"mode {mode:#x}"))


def _base(arch: str, one: Instruction) -> Case | None:
    operands: dict[str, Operand] = {}
    cdna = arch.startswith("gfx9")
    mask_bits = 64 if cdna else 32
    for field, (form, field_bits, kind) in one.fields.items():
        if field in ("literal", "simm32"):
            continue
        if field not in VECTOR_AT and field not in SCALAR_AT:
            return None
        name, bits = field, mask_bits if form == "FMT_NUM_M64" else field_bits
        scalar = "SREG" in kind or "SDST" in kind or "SSRC" in kind or (form == "FMT_NUM_M64" and kind != "OPR_VGPR")
        if scalar and name == "vdst" and (one.name.startswith("v_cmp") or form in ("FMT_NUM_M64", "FMT_NUM_B64")):
            name, bits = "sdst", mask_bits
        if one.encoding == "VOPC" and name in ("vdst", "sdst", "vcc"):
            continue
        if kind == "OPR_VCC" or name == "vcc":
            continue
        at = SCALAR_AT[name] if scalar else VECTOR_AT[name]
        operands[name] = Operand("s" if scalar else "v", at, bits, form)
    if one.name.startswith("v_cmp") and one.encoding == "VOP3" and "sdst" not in operands and "vdst" in operands:
        del operands["vdst"]
    case = Case(arch, one.name, one.encoding, one.pseudocode, [], operands)
    if "SIMM32" in one.pseudocode:
        case.literal = 0x40490FDB if "f32" in one.name else 0x3C01
    return case


def register(operand: Operand, *, halves: bool) -> str:
    """An operand as the assembler reads it."""
    if operand.kind == "c":
        return (
            str(operand.index)
            if not isinstance(operand.index, int) or -16 <= operand.index <= 64
            else f"{operand.index & 0xFFFFFFFF:#x}"
        )
    if operand.index == "vcc":
        return "vcc"
    first, words = operand.index, operand.words
    text = f"{operand.kind}{first}" if words == 1 else f"{operand.kind}[{first}:{first + words - 1}]"
    if halves and operand.kind == "v" and operand.bits == 16:
        text += ".h" if operand.high else ".l"
    return text


def _texted(case: Case) -> Case:
    """The case with its texts: RDNA's halves of registers may be named or not."""
    if selects_itself(case) and not case.cdna and case.select:
        case.texts = _part_texts(case)
        return case
    case.texts = [_vector_text(case, halves=halves) for halves in ((False,) if case.cdna else (True, False))]
    if case.encoding == "VOP3P" and case.select == 0 and case.select_high == 7:  # some have no op_sel
        case.texts += [re.sub(r" op_sel\S* op_sel_hi\S*", "", text) for text in case.texts]
    if any(operand.high for operand in case.operands.values()) and not case.cdna:
        case.texts = case.texts[:1]
    return case


def _part_texts(case: Case) -> list[str]:
    """RDNA's ways to name a part: a byte, or bits of op_sel."""
    text = _vector_text(case, halves=False)
    if "2'2U" in case.pseudocode and "SRC0" not in case.pseudocode and "OPSEL[3 : 2]" in case.pseudocode:
        return [f"{text} byte_sel:{case.select >> 2}"]
    if "OPSEL[1 : 0]" in case.pseudocode:  # whose two bits come in the opposite order
        return [f"{text} byte_sel:{case.select >> 1 & 1 | (case.select & 1) << 1}"]
    count = sum(name in case.operands for name in ("src0", "src1", "vsrc1", "src2"))
    return [f"{text} op_sel:[{','.join(str(case.select >> i & 1) for i in (*range(count), 3))}]"]


def _vector_text(case: Case, *, halves: bool) -> str:
    ops, vcc = case.operands, "vcc" if case.cdna else "vcc_lo"
    suffix = {"VOP3": "_e64", "VOP3SD": "_e64", "VOP3P": ""}.get(case.encoding, "_e32")
    if case.dpp is not None:
        suffix = "_dpp"
    if case.sdwa is not None:
        suffix = "_sdwa"
    items: list[str] = []
    if case.encoding == "VOPC":
        # v_cmpx of RDNA has no result but EXEC
        items += [vcc] if case.cdna or not case.name.startswith("v_cmpx") else []
    for name in ("vdst", "sdst") if case.encoding == "VOP3SD" or "vdst" in ops else ("sdst",):
        if name in ops and not (name == "sdst" and case.name.startswith("v_cmpx") and not case.cdna):
            items.append(register(ops[name], halves=halves))
    if case.encoding == "VOP2" and "VCC.u64[laneId] =" in case.pseudocode:
        items.append(vcc)
    for name in ("src0", "src1", "vsrc1", "src2"):
        if name not in ops:
            continue
        operand = ops[name]
        text = register(operand, halves=halves)
        if operand.absolute:
            text = f"|{text}|"
        if operand.negative:
            text = f"-{text}"
        if operand.sext:
            text = f"sext({text})"
        items.append(text)
    if "SIMM32" in case.pseudocode:
        items.insert(len(items) - (1 if "mk_" in case.name else 0), f"{case.literal:#x}")
    reads_vcc = "VCC.u64[laneId]" in case.pseudocode.replace("VCC.u64[laneId] =", "")
    if case.encoding == "VOP2" and reads_vcc:
        items.append(vcc)
    text = f"{case.name}{suffix} {', '.join(items)}"
    if case.bitop:
        text += f" bitop3:{case.bitop:#x}"
    count = sum(name in ops for name in ("src0", "src1", "vsrc1", "src2"))
    if case.encoding == "VOP3P":
        text += _packed_text(case, count)
    elif case.cdna and case.select:
        places = range(4) if "OPSEL[3 : 2]" in case.pseudocode else (*range(count), 3)
        text += f" op_sel:[{','.join(str(case.select >> i & 1) for i in places)}]"
    if case.dpp is not None:
        text += _dpp_text(case)
    if case.omod:
        text += {1: " mul:2", 2: " mul:4", 3: " div:2"}[case.omod]
    if case.clamp:
        text += " clamp"
    if case.sdwa is not None:
        dst = "" if case.encoding == "VOPC" else f" dst_sel:{case.sdwa[0]} dst_unused:{case.sdwa[1]}"
        text += f"{dst} src0_sel:{case.sdwa[2]}" + (f" src1_sel:{case.sdwa[3]}" if count > 1 else "")
    return text


def _packed_text(case: Case, count: int) -> str:
    def bits(mask: int) -> str:
        return ",".join(str(mask >> i & 1) for i in range(count))

    text = f" op_sel:[{bits(case.select)}] op_sel_hi:[{bits(case.select_high)}]"
    if "mix" in case.name:
        return text
    if case.neg_low:
        text += f" neg_lo:[{bits(case.neg_low)}]"
    return text + (f" neg_hi:[{bits(case.neg_high)}]" if case.neg_high else "")


def _dpp_text(case: Case) -> str:
    assert case.dpp is not None
    control, amount = case.dpp
    if control == "dpp8":
        lanes = ",".join(str(amount >> 3 * i & 7) for i in range(8))
        return f" dpp8:[{lanes}]" + (" fi:1" if case.fetch_inactive else "")
    if control == "quad_perm":
        text = f" quad_perm:[{','.join(str(amount >> 2 * i & 3) for i in range(4))}]"
    else:
        text = f" {control}" + ("" if "mirror" in control else f":{amount}")
    text += f" row_mask:{case.masks[0]:#x} bank_mask:{case.masks[1]:#x}"
    return text + (" bound_ctrl:1" if case.bound_zero else "") + (" fi:1" if case.fetch_inactive else "")


def _in_place(case: Case) -> Case | None:
    to, first = case.operands.get("vdst"), case.operands.get("src0")
    if to is None or first is None or first.kind != "v" or to.kind != "v" or to.words > 4 or "literal" in case.operands:
        return None
    if to.words != first.words or case.name.startswith("v_permlane"):
        return None
    return replace(case, operands={**case.operands, "vdst": replace(to, index=first.index)})


def _with_constant(case: Case, kind: str, draw: random.Random) -> Case | None:
    first = case.operands.get("src0")
    if first is None or first.kind != "v":
        return None
    if case.encoding == "VOP3P" and kind != "scalar":
        return None
    index: Any
    if (
        case.name == "v_pk_fmac_f16" and kind != "scalar" and not case.cdna
    ):  # assemblers differ in what they take for one
        return None
    if first.bits > 32 and "scalef32" in case.name:  # vectors alone
        return None
    if kind == "integer":
        index = draw.choice(INTEGERS)
    elif kind == "float":
        if not first.is_float:
            return None
        index = draw.choice(FLOATS)
    elif kind == "scalar":
        return replace(case, operands={**case.operands, "src0": replace(first, kind="s", index=SCALAR_AT["src0"])})
    else:
        if first.bits not in (32,) or case.encoding not in ("VOP1", "VOP2", "VOPC") or case.literal:
            return None
        index = draw.getrandbits(31) | 0x100
    return replace(case, operands={**case.operands, "src0": replace(first, kind="c", index=index)})


def _with_signs(case: Case, draw: random.Random, variant: str) -> Case:
    operands = dict(case.operands)
    for name in ("src0", "src1", "vsrc1", "src2"):
        if name in operands and operands[name].has_sign:
            operands[name] = replace(operands[name], negative=draw.random() < 0.5, absolute=draw.random() < 0.5)
    return replace(case, operands=operands, variant=variant)


def _with_halves(case: Case, draw: random.Random) -> Case:
    operands, select = dict(case.operands), 0
    for i, name in ((0, "src0"), (1, "src1"), (2, "src2"), (3, "vdst")):
        if name in operands and operands[name].bits == 16 and operands[name].kind == "v" and draw.random() < 0.5:
            operands[name] = replace(operands[name], high=True)
            select |= 1 << i
    return replace(case, operands=operands, select=select, variant="op_sel")


def _parts(one: Instruction, draw: random.Random) -> int:
    """The bits of op_sel that an instruction's pseudocode reads, drawn."""
    of_sources, of_result = (
        "OPSEL[0]" in one.pseudocode or "OPSEL[1 : 0]" in one.pseudocode,
        "OPSEL[3" in one.pseudocode,
    )
    mask = (1 if "OPSEL[0]" in one.pseudocode else 3) if of_sources else 0
    mask |= (12 if "OPSEL[3 : 2]" in one.pseudocode else 8) if of_result else 0
    return draw.getrandbits(4) & mask


def _with_packed(case: Case, draw: random.Random) -> Case:
    if case.name.startswith(("v_dot4", "v_dot8")):  # whole registers, whose parts' signs neg says of some
        return replace(case, neg_low=draw.getrandbits(2) if "NEG[" in case.pseudocode else 0, variant="signs")
    made = replace(case, select=draw.getrandbits(3), select_high=draw.getrandbits(3), variant="op_sel, neg")
    if "mix" in case.name:
        return made
    if case.name.startswith("v_dot"):  # what neg of the one float32 means, no document says
        made.neg_low, made.neg_high = draw.getrandbits(2), draw.getrandbits(2)
        return made
    if any("PK2_F" in o.form or "PK2_BF" in o.form for o in case.operands.values()):
        made.neg_low, made.neg_high = draw.getrandbits(3), draw.getrandbits(3)
    return made


def _permuted(arch: str, base: Case, draw: random.Random) -> Iterator[Case]:
    masks = "vdst" in base.operands and "VCC" not in base.pseudocode
    controls: list[tuple[str, int]] = [
        ("quad_perm", draw.getrandbits(8)), ("row_shl", draw.randint(1, 15)), ("row_shr", draw.randint(1, 15)),
        ("row_ror", draw.randint(1, 15)), ("row_mirror", 0), ("row_half_mirror", 0),
    ]  # fmt: skip
    if arch.startswith("gfx9"):
        controls += [("wave_shl", 1), ("wave_rol", 1), ("wave_shr", 1), ("wave_ror", 1), ("row_bcast", 15)]
        controls += [("row_bcast", 31), ("row_newbcast", draw.randrange(16))]
    else:
        controls += [
            ("row_share", draw.randrange(16)),
            ("row_xmask", draw.randrange(16)),
            ("dpp8", draw.getrandbits(24)),
        ]
    if not masks:
        controls = [c for c in controls if c[0] in ("quad_perm", "row_ror", "row_mirror", "row_half_mirror", "dpp8")]
    for control in draw.sample(controls, 3) if base.name != "v_mov_b32" else controls:
        case = replace(base, dpp=control, variant=f"dpp {control[0]}")
        if masks and control[0] != "dpp8":
            case.masks = draw.choice(((15, 15), (draw.getrandbits(4), draw.getrandbits(4))))
            case.bound_zero = draw.random() < 0.5
            case.exec_mask = draw.choice((-1, _some(draw, arch)))
        case.fetch_inactive = not arch.startswith("gfx9") and draw.random() < 0.5
        yield _texted(case)
        if (in_place := _in_place(case)) is not None:
            yield _texted(replace(in_place, variant=f"{case.variant}, in place"))


def _with_sdwa(case: Case, draw: random.Random) -> Case:
    operands = dict(case.operands)
    for name in ("src0", "vsrc1"):
        if name in operands and operands[name].has_sign:
            operands[name] = replace(operands[name], negative=draw.random() < 0.3, absolute=draw.random() < 0.3)
        elif name in operands and not operands[name].is_float:
            operands[name] = replace(operands[name], sext=draw.random() < 0.5)
    unused = draw.choice(("UNUSED_PAD", "UNUSED_SEXT", "UNUSED_PRESERVE"))
    if any(o.is_float for o in operands.values()):  # a part of a NaN or of an inexact unit's result says nothing
        whole = ("DWORD",) if operands.get("vdst", operands["src0"]).bits == 32 else ("DWORD", "WORD_0", "WORD_1")
        to, unused = draw.choice(whole), draw.choice(("UNUSED_PAD", "UNUSED_PRESERVE"))
        return replace(
            case, operands=operands, sdwa=(to, unused, draw.choice(SELECTS), draw.choice(SELECTS)), variant="sdwa"
        )
    sdwa = (draw.choice(SELECTS), unused, draw.choice(SELECTS), draw.choice(SELECTS))
    return replace(case, operands=operands, sdwa=sdwa, variant="sdwa")


# Scalar


def _scalar(arch: str, one: Instruction, draw: random.Random) -> Iterator[Case]:
    operands = {}
    for name, (form, bits, _) in one.fields.items():
        if name in ("simm16", "simm32", "literal"):
            continue
        if name not in SCALAR_AT:
            return
        operands[name] = Operand("s", SCALAR_AT[name], bits, form)
    base = Case(arch, one.name, one.encoding, one.pseudocode, [], operands)
    if "SIMM32" in one.pseudocode:
        base.literal = 0x40490FDB
    for turn in range(6):
        case = replace(base, variant=f"scalars {turn}")
        if one.encoding == "SOPK":
            case.immediate = draw.choice((0, 1, 0x7FFF, 0x8000, 0xFFFF, draw.getrandbits(16)))
        elif turn == 4 and (name := draw.choice([n for n in operands if n.startswith("ssrc")] or [""])):
            case = replace(
                case, operands={**operands, name: replace(operands[name], kind="c", index=draw.choice(INTEGERS))}
            )
            case.variant = "integer source"
        elif turn == 5 and "ssrc0" in operands and operands["ssrc0"].bits == 32 and not base.literal:
            case = replace(
                case, operands={**operands, "ssrc0": replace(operands["ssrc0"], kind="c", index=draw.getrandbits(31))}
            )
            case.variant = "literal source"
        items = [register(case.operands[n], halves=False) for n in ("sdst", "ssrc0", "ssrc1") if n in case.operands]
        if one.encoding == "SOPK":
            items.append(f"{case.immediate:#x}")
        if base.literal:
            items.insert(2 if "mk_" in one.name else 3, f"{base.literal:#x}")
        case.texts = [f"{one.text} {', '.join(items)}"]
        yield case


def _scalar_memory(arch: str, one: Instruction, draw: random.Random) -> Iterator[Case]:
    if "sdata" not in one.fields or "sbase" not in one.fields:
        return
    for _ in range(3):
        form, bits, _ = one.fields["sdata"]
        offset = (
            4 * draw.randrange(256)
            if "b32" in one.name or "dword" in one.name or bits > 32
            else 2 * draw.randrange(512)
        )
        size = 128 if "buffer" in one.name else 64
        operands = {"sdata": Operand("s", 32, bits, form), "sbase": Operand("s", 64, size, "FMT_BUF")}
        text = f"{one.text} {register(operands['sdata'], halves=False)}, {register(operands['sbase'], halves=False)}"
        case = Case(arch, one.name, one.encoding, one.pseudocode, [], operands, offset=offset, variant="offset")
        case.texts = [f"{text}, {offset:#x}", f"{text}, offset:{offset:#x}"]
        yield case


# Memory


def _lds(arch: str, one: Instruction, draw: random.Random) -> Iterator[Case]:
    once = "VGPR[" in one.pseudocode
    two = not once and any(part in one.name for part in ("read2", "write2", "2addr", "wrxchg2"))
    for turn in range(3):
        operands = {
            name: Operand("v", VECTOR_AT[name], bits, form)
            for name, (form, bits, _) in one.fields.items() if name in VECTOR_AT
        }  # fmt: skip
        case = Case(arch, one.name, one.encoding, one.pseudocode, [], operands, variant=f"lds {turn}")
        case.exec_mask = _some(draw, arch) if turn else -1
        names = [name for name in ("vdst", "addr", "data0", "data1") if name in operands]
        text = f"{one.text} {', '.join(register(operands[name], halves=False) for name in names)}"
        if two:
            case.offsets = draw.randrange(2), draw.randrange(2, 4)
            text += f" offset0:{case.offsets[0]} offset1:{case.offsets[1]}"
        else:
            case.offset = 16 * draw.randrange(16) if turn else 0
            case.offsets = case.offset & 255, case.offset >> 8
            text += f" offset:{case.offset}" if case.offset else ""
        if once:
            case.offset = 4 * draw.randrange(8)
            text = f"{one.text} v32, v56, v40 offset:{case.offset}"
        case.texts = [text]
        yield case


def _memory(arch: str, one: Instruction, draw: random.Random) -> Iterator[Case]:
    buffer, scratch = one.encoding in ("MUBUF", "VBUFFER"), "SCRATCH" in one.encoding
    atomic, flat = "atomic" in one.name, one.encoding in ("FLAT", "VFLAT")
    store, rdna = "store" in one.name, not arch.startswith("gfx9")
    value = one.fields.get("vdst") or one.fields.get("vdata")
    data = one.fields.get("vsrc") or one.fields.get("data") or one.fields.get("vdata")
    if (value or data) is None or "lds" in one.name:
        return
    for turn in range(4):
        ops: dict[str, Operand] = {}
        returns = atomic and turn % 2 == 1
        if store or atomic:
            ops["data"] = Operand("v", 40, data[1] if data else 32, "FMT_ANY")
        if not store and (not atomic or returns or buffer):
            bits = value[1] if value else 32
            ops["vdata" if buffer else "vdst"] = Operand("v", 40 if buffer else 32, bits, "FMT_ANY")
        if buffer:
            ops["vdata"] = Operand("v", 40, (data or value or ("", 32, ""))[1], "FMT_ANY")
            ops.pop("data", None)
        case = Case(arch, one.name, one.encoding, one.pseudocode, [], ops, variant=f"memory {turn}")
        case.exec_mask = _some(draw, arch) if turn > 1 else -1
        case.offset = (8 if "64" in one.name or "x2" in one.name else 4) * draw.randrange(4) if turn else 0
        glc = (
            (
                "sc0"
                if arch in ("gfx942", "gfx950")
                else "glc"
                if not arch.startswith("gfx12")
                else "th:TH_ATOMIC_RETURN"
            )
            if returns
            else ""
        )
        case.variant += " glc" if returns else ""
        to = register(ops["vdst"], halves=False) if "vdst" in ops else ""
        given = register(ops["data"], halves=False) if "data" in ops else ""
        if buffer:
            ops["rsrc"] = Operand("s", 64, 128, "FMT_ANY")
            ops["vaddr"] = Operand("v", 56, 32, "FMT_ANY")
            if turn > 2:
                ops["soffset"] = Operand("s", 68, 32, "FMT_ANY")
            scalar = "s68" if turn > 2 else "null" if rdna else "0"
            moved = register(ops["vdata"], halves=False)
            text = f"{one.text} {moved}, v56, s[64:67], {scalar} offen offset:{case.offset} {glc}"
        elif scratch:
            if turn % 2:
                ops["saddr"], address = Operand("s", 68, 32, "FMT_ANY"), "off, s68"
            else:
                ops["vaddr"], address = Operand("v", 56, 32, "FMT_ANY"), "v56, off"
            parts = address.split(", ")
            text = f"{one.text} {parts[0]}, {given}, {parts[1]}" if store else f"{one.text} {to}, {address}"
            text += f" offset:{case.offset}"
        else:
            wide = flat or turn % 2 == 0
            ops["vaddr"] = Operand("v", 56, 64 if wide else 32, "FMT_ANY")
            if not wide:
                ops["saddr"] = Operand("s", 64, 64, "FMT_ANY")
            items = (
                [to, register(ops["vaddr"], halves=False), given]
                if not store
                else [register(ops["vaddr"], halves=False), given]
            )
            if not flat:
                items.append("off" if wide else "s[64:65]")
            text = f"{one.text} {', '.join(i for i in items if i)} offset:{case.offset} {glc}"
        case.texts = [text.strip()]
        yield case


def tables() -> dict[str, str]:
    """The table of instructions of each architecture."""
    return TABLES
