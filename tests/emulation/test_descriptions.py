"""Instructions in findings: each operand by the name that the assembler has for it."""

import pytest

from portakernel.emulation import abi
from portakernel.emulation.operand_text import describe
from portakernel.emulation.record import Record


@pytest.mark.parametrize(
    ("code", "text"),
    [(0, "s0"), (105, "s105"), (106, "vcc"), (107, "vcc_hi"), (108, "ttmp0"), (123, "ttmp15"), (124, "null"),
     (125, "m0"), (126, "exec"), (127, "exec_hi"), (128, "0"), (192, "64"), (193, "-1"), (208, "-16"), (240, "0.5"),
     (247, "-4.0"), (253, "scc"), (255, "0x1234"), (256, "v0"), (511, "v255"), (512, "a0"), (235, "src235")],
)  # fmt: skip
def test_a_source_has_the_assemblers_name(code, text):
    record = Record("v_add_f32", 0, 4, dst=abi.VGPR + 1, src=[code, abi.VGPR + 2, abi.NO_OPERAND, abi.NO_OPERAND])
    record.literal = 0x1234
    assert describe(record) == f"v_add_f32 v1, {text}, v2"


def test_unknown_bytes_are_shown_as_they_are():
    assert describe(Record("unknown", 8, 4, raw=bytes.fromhex("deadbeef"))) == "unknown bytes deadbeef"


def test_an_offset_follows_the_operands():
    record = Record("global_load_dword", 0, 8, dst=abi.VGPR, src=[abi.VGPR + 2, 4, *[abi.NO_OPERAND] * 2], imm=-16)
    assert describe(record) == "global_load_dword v0, v2, s4 offset:-16"
