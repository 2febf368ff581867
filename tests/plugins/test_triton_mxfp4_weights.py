"""What NVIDIA's devices decode mxfp4 with, instruction by instruction, for every byte in every place."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("triton")

import torch
from torch import Tensor

from portakernel.authoring.triton import compiling
from portakernel.words.target import Target
from portakernel_plugins.triton.matrix import grouped_mm, mxfp4_weights

BYTES = torch.arange(256)


def wrapped(numbers: Tensor) -> Tensor:
    """The low 32 bits of int64 numbers."""
    return numbers & 0xFFFFFFFF


def permuted(a: Tensor, b: Tensor, selector: Tensor) -> Tensor:
    """``prmt``: four of the eight bytes of two words, a selector's nibble each."""
    both, found = a | b << 32, torch.zeros_like(a)
    for place in range(4):
        nibble = selector >> 4 * place & 0xF
        assert (nibble < 8).all()  # above that a byte's sign is spread
        found |= (both >> 8 * nibble & 0xFF) << 8 * place
    return found


def scaled(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """``fma.rn.bf16x2``: of two numbers each."""
    found = torch.zeros_like(a)
    for place in (0, 16):
        x, y, z = ((word >> place & 0xFFFF).to(torch.uint16).view(torch.bfloat16).double() for word in (a, b, c))
        found |= (x * y + z).to(torch.bfloat16).view(torch.uint16).long() << place
    return found


def run(assembly: str, operands: dict[str, Tensor]) -> list[Tensor]:
    """``$0`` to ``$3`` of what the text does, in Python."""
    words = dict(operands)

    def value(name: str) -> Tensor:
        return words[name] if name in words else torch.full_like(words["$4"], int(name, 16 if "x" in name else 10))

    lines = re.findall(r"^\s*([a-z][\w.]+) ([^;]+);", assembly, re.MULTILINE)
    assert len(lines) == assembly.count(";") - assembly.count(".reg")
    for operation, text in lines:
        target, *sources = (part.strip() for part in text.split(","))
        given = [value(name) for name in sources]
        match operation:
            case "mov.b32":
                words[target] = given[0]
            case "and.b32":
                words[target] = given[0] & given[1]
            case "shr.b32":
                words[target] = given[0] >> given[1]
            case "shl.b32":
                words[target] = wrapped(given[0] << given[1])
            case "prmt.b32":
                words[target] = permuted(*given)
            case "lop3.b32":
                assert sources[3] == "0xea"
                words[target] = given[0] & given[1] | given[2]
            case "fma.rn.bf16x2":
                words[target] = scaled(*given)
            case _:
                raise AssertionError(operation)
    return [words[f"${place}"] for place in range(4)]


@pytest.mark.parametrize("scale", [1.0, 2.0**-9, 2.0**-127, 2.0**125])
def test_each_byte_in_each_place_is_two_numbers_times_its_own_scale(scale):
    scales = [scale / 2 if scale > 1 else scale, scale, scale, scale]
    bits = [int(torch.tensor(number).bfloat16().view(torch.uint16)) for number in scales]
    positive = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=torch.float64)
    numbers = torch.cat((positive, -positive))
    for place in range(4):
        others = 0xFFFFFFFF ^ 0xFF << 8 * place  # all other codes are the largest negative one
        operands = {"$4": BYTES << 8 * place | others}
        operands |= {f"${5 + i}": torch.full_like(BYTES, number | number << 16) for i, number in enumerate(bits)}
        found = run(mxfp4_weights.PAIRS.value, operands)[place]
        for shift, codes in ((0, BYTES & 0xF), (16, BYTES >> 4)):
            halves = (found >> shift & 0xFFFF).to(torch.uint16).view(torch.bfloat16)
            want = (numbers[codes] * scales[place]).bfloat16()
            assert torch.equal(halves.view(torch.int16), want.view(torch.int16))  # signs of zeros too


@pytest.mark.parametrize("rows", [1, 16, 32])
def test_weights_of_mxfp4_stay_in_their_lane(rows):
    # so many of each of four experts
    def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    codes, scales = empty(4, 256, 512, dtype=torch.uint8), empty(4, 256, 32, dtype=torch.uint8)
    with compiling(Target("nvidia", "sm_90")) as found:
        grouped_mm.multiply(
            "forward", empty(4 * rows, 1024), codes.view(torch.float4_e2m1fn_x2), empty(5, dtype=torch.int32),
            empty(4 * rows, 256), scale_b=scales.view(torch.float8_e8m0fnu), format="mxfp4",
        )  # fmt: skip
    ptx = found[0].assembly
    # what goes through shared memory is x
    last = [product.start() for product in re.finditer(r"wgmma\.mma_async|mma\.sync", ptx)][-1]
    loop = ptx[ptx.index("0x77777777") : last]
    assert "st.shared" not in loop
    assert "shfl.sync" not in loop
    # and a step's products end before the next one's weights are decoded
    behind = ptx[last:]
    assert behind.index("wgmma.wait_group.sync.aligned 0") < behind.index("cp.async")
