"""What cannot be emulated is refused by name, and nothing that bytes say ends the process."""

import random
import struct

import pytest

pytest.importorskip("tinygrad")
pytest.importorskip("triton")
import torch
from cxx import HAS_CXX
from emulated_kernels import add, compiled, rms_norm

from portakernel.emulation import EmulationError, emulate
from portakernel.emulation.arch import ARCHS
from portakernel.emulation.code_object import load
from portakernel.emulation.decoder import decode
from portakernel.emulation.program import program

pytestmark = [
    pytest.mark.skipif(not HAS_CXX, reason="lacks a C++ compiler, which compiles the engine"),
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION is unset:UserWarning"),
]
TYPES, BLOCK = ("*fp32", "*fp32", "*fp32", "i32"), (("BLOCK", 256),)


@pytest.fixture(scope="module")
def code():
    return compiled(add, TYPES, BLOCK, "gfx942")[0]


def launch(data, arguments=None, block=256, **options):
    if arguments is None:
        arguments = [torch.randn(256), torch.randn(256), torch.zeros(256), 256, None, None]
    return emulate(data, "add", (1,), (block,), arguments, "gfx942", **options)


def altered(data, offset, form, value):
    made = bytearray(data)
    struct.pack_into(form, made, offset, value)
    return bytes(made)


def descriptor_at(data):
    """The descriptor is all that .rodata holds; it ends with the kernel's properties, and its entry is relative."""
    entry = load(data, "gfx942").kernels["add"].entry
    preloads = (0, 256)
    return next(
        at
        for at in range(0, 0x1000, 64)
        if any(at + struct.unpack_from("<q", data, at + 16)[0] + preload == entry for preload in preloads)
    )


def test_another_architecture_is_named(code):
    with pytest.raises(EmulationError, match=r"^the code object is for gfx942, not for gfx1100$"):
        load(code, "gfx1100")


def test_an_architecture_that_is_not_emulated_is_named(code):
    with pytest.raises(
        EmulationError,
        match=r"^architecture 'gfx906' is not emulated; these are: gfx90a, gfx942, gfx950, gfx1100, gfx1201$",
    ):
        load(code, "gfx906")


def test_an_older_code_object_is_named(code):
    with pytest.raises(EmulationError, match=r"^code object version 4 is not emulated; 5 and 6 are$"):
        load(altered(code, 8, "<B", 2), "gfx942")


def test_what_is_no_elf_file_is_named():
    with pytest.raises(
        EmulationError, match=r"^the code object is no 64-bit ELF file; give the whole file that the compiler wrote$"
    ):
        load(b"hello", "gfx942")


def test_a_file_cut_short_anywhere_is_refused(code):
    for size in range(0, len(code) - 1, 97):
        with pytest.raises(EmulationError):
            load(code[:size], "gfx942")


def test_more_lds_than_the_chip_has_is_refused(code):
    with pytest.raises(
        EmulationError,
        match=r"^add with 70000 bytes of dynamic LDS takes 70000; a workgroup of gfx942 has 65536$",
    ):
        launch(code, dynamic_lds=70000)
    at = descriptor_at(code)
    with pytest.raises(
        EmulationError, match=r"^kernel add takes 100000 bytes of LDS; a workgroup of gfx942 has 65536$"
    ):
        load(altered(code, at, "<I", 100000), "gfx942")


@pytest.mark.parametrize("entry", [1 << 40, -(1 << 40), 3, 0])
def test_an_entry_outside_of_the_code_is_refused(code, entry):
    with pytest.raises(EmulationError, match=r"^kernel add begins at -?0x[0-9a-f]+, outside .text$"):
        load(altered(code, descriptor_at(code) + 16, "<q", entry), "gfx942")


def test_a_kernel_that_is_not_there_is_named(code):
    with pytest.raises(EmulationError, match=r"^no kernel 'sub' is in the code object; it has add$"):
        emulate(code, "sub", (1,), (256,), [], "gfx942")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], r"^add takes 6 arguments \(.*\), not 0$"),
        (
            [1.5, None, None, 5, None, None],
            r"^argument 0 is a float: pass a tensor, an array or None for a pointer$",
        ),
        ([None, None, None, 1 << 40, None, None], r"^1099511627776 does not fit argument 3 of 4 bytes$"),
        ([None, None, None, b"12345678", None, None], r"^argument 3 takes 4 bytes, not 8$"),
        ([torch.empty(4, device="meta")] * 3 + [4, None, None], r"^argument 0 is on meta; the emulator takes"),
    ],
)
def test_arguments_that_do_not_fit_are_named(code, arguments, message):
    with pytest.raises(EmulationError, match=message):
        launch(code, arguments)


@pytest.mark.parametrize("size", [0, 4, 9])
def test_a_pointer_that_is_given_another_size_than_pointers_have_is_named_or_fits(code, size):
    """The metadata says how many bytes of the arguments are each of them; it is a file's, which may say anything."""
    place = code.index(b".size\x08", code.index(b".offset\x00")) + 5
    data = altered(code, place, "<B", size)
    if size > 7:
        assert launch(data).counts.total
        return
    with pytest.raises(EmulationError, match=rf"^pointer 0x[0-9a-f]+ does not fit argument 0 of {size} bytes$"):
        launch(data)


def refused(code, at, size, seed):
    """How many of 200 launches are refused, each with one to three random bytes in the ``size`` ones from ``at`` on."""
    draw = random.Random(seed)
    count = 0
    for _ in range(200):
        changed = bytearray(code)
        for _ in range(draw.randrange(1, 4)):
            changed[at + draw.randrange(size)] = draw.randrange(256)
        try:
            launch(bytes(changed), budget=3_000, threads=1)
        except EmulationError:
            count += 1
    return count


def test_what_a_descriptor_says_of_results_that_are_too_large_is_in_the_mode(code):
    at = descriptor_at(code) + 48
    (rsrc1,) = struct.unpack_from("<I", code, at)
    modes = [load(altered(code, at, "<I", rsrc1 | bit), "gfx942").kernels["add"].mode for bit in (0, 1 << 26)]
    assert modes == [rsrc1 >> 12 & 0xFF, rsrc1 >> 12 & 0xFF | 1 << 23]


@pytest.mark.parametrize(("arch", "raw"), [("gfx90a", "f91a302f507f47f9"), ("gfx950", "f99a752f8de8e8ad")])
def test_an_instruction_with_a_literal_selects_no_bytes_as_well(arch, raw):
    (record, *_), _ = decode(bytes.fromhex(raw), ARCHS[arch])
    assert record.name == "unknown"
    record.pack(0)


@pytest.mark.parametrize("seed", range(3))
def test_no_metadata_ends_the_process(code, seed):
    assert refused(code, code.index(b"AMDGPU\0"), 0x500, seed) > 20


@pytest.mark.parametrize("seed", range(3))
def test_no_descriptor_ends_the_process(code, seed):
    assert refused(code, descriptor_at(code), 64, seed) > 20


@pytest.mark.parametrize("block", [0, 2000])
def test_a_block_that_no_workgroup_can_be_is_refused(code, block):
    with pytest.raises(
        EmulationError, match=r"^(block is \(0,\): give one to three sizes of at least 1|a block of 2000)"
    ):
        launch(code, block=block)


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201"])
def test_no_code_ends_the_process(arch):
    """Random words, and words of a real kernel with a bit turned, in the place of its code."""
    types = ("*fp32", "*fp32", "*fp32", "i32", "fp32")
    data, shared = compiled(rms_norm, types, BLOCK, arch)
    text = program(data, arch).loaded.text
    at = data.index(text)
    draw = random.Random(arch)
    wave = 64 if arch.startswith("gfx9") else 32
    found = 0
    for turn in range(60):
        changed = bytearray(text)
        for _ in range(1 + turn % 8):
            place = draw.randrange(min(len(text), 600))
            changed[place] ^= 1 << draw.randrange(8)
        if turn % 6 == 0:
            changed = bytearray(draw.randbytes(len(text)))
        arguments = [torch.randn(2, 200), torch.randn(200), torch.zeros(2, 200), 200, 1e-6, None, None]
        ran = emulate(
            data[:at] + bytes(changed) + data[at + len(text) :],
            *("rms_norm", (2,), (4 * wave,), arguments, arch),
            dynamic_lds=shared,
            budget=20_000,
        )
        found += bool(ran.findings)
    assert found > 10


@pytest.mark.parametrize("seed", range(3))
def test_no_header_ends_the_process(code, seed):
    draw = random.Random(seed)
    refused = 0
    for _ in range(150):
        changed = bytearray(code)
        for _ in range(3):
            changed[draw.randrange(0x600)] = draw.randrange(256)
        try:
            launch(bytes(changed), budget=10_000)
        except EmulationError:
            refused += 1
    assert refused > 10
