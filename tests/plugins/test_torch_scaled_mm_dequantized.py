"""The dequantised product in the numbers that it takes on GPUs, with the product itself computed here."""

from __future__ import annotations

import itertools
from contextlib import contextmanager

import pytest
import torch

from portakernel.contract.case import Case
from portakernel.contracts import contract
from portakernel.words.dtypes import SCALE_FORMATS
from portakernel_kit.conformance.comparison import Match, compare_rows
from portakernel_kit.conformance.inputs import draw_inputs, generator
from portakernel_kit.conformance.truth import Truth
from portakernel_plugins.torch.matrix import scaled_mm_dequantized as module

CONTRACT = contract("scaled_mm")
FLOAT8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
ELEMENTS = {
    **dict.fromkeys(("tensor", "row", "block_1x128", "block_128x128"), FLOAT8),
    "mxfp8": ("float8_e4m3fn", "float8_e5m2"),
    "mxfp4": ("float4_e2m1fn_x2",),
    "nvfp4": ("float4_e2m1fn_x2",),
}
SCALES = {"mxfp8": "float8_e8m0fnu", "mxfp4": "float8_e8m0fnu", "nvfp4": "float8_e4m3fn"}
KINDS = [(layout, dtype) for layout in SCALE_FORMATS for dtype in ELEMENTS[layout]]


def draw(left, right, *, out_dtype, present=(), sizes=(130, 24, 260)):
    """Inputs and the truth about them; operands are pairs of a format and a dtype."""
    formats = {"format_a": left[0], "format_b": right[0]}
    case = Case("drawn", dims=dict(zip("MNK", sizes, strict=True)), parameters=formats, present=present)
    dtypes = {"a": left[1], "b": right[1], "out_dtype": out_dtype, "bias": "float32"}
    dtypes |= {f"scale_{name}": SCALES.get(kind[0], "float32") for name, kind in (("a", left), ("b", right))}
    dtypes |= {"global_scale_a": "float32", "global_scale_b": "float32"}
    inputs = draw_inputs(CONTRACT, case, dtypes, "cpu", generator(7, left, right, out_dtype, sizes))
    return inputs, Truth.of(inputs)


def held(inputs, truth):
    positional, keywords = inputs.keywords(inputs.tensors)
    found = module.scaled_mm(*positional, **keywords)
    assert found.dtype == inputs.dtype(inputs.contract.outputs[0])
    return compare_rows(found, truth.outputs["y"], truth.plain["y"])


@contextmanager
def numbers_of(device):
    """What a device of the type multiplies, by this one; products of bfloat16 are exact in float32."""
    asked = module._Numbers.asked

    def product(left, right):
        left, right = module._in_bfloat16(left, right)
        assert left.dtype is right.dtype is torch.bfloat16
        return left.float() @ right.float().t()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module._Numbers, "asked", lambda _, found: asked(device, found))
        if device == "cuda":
            patch.setattr(module, "_wide_product", product)
        yield


DEVICES = ("cpu", "cuda", "xpu")


@pytest.mark.turns(3)
@pytest.mark.parametrize("out_dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("left", KINDS, ids="-".join)
def test_every_pair_of_formats_and_dtypes_is_as_exact_as_the_result_asks(left, out_dtype):
    wrong = {}
    for right in KINDS:
        drawn = draw(left, right, out_dtype=out_dtype)
        for device in DEVICES:
            with numbers_of(device):
                outcome = held(*drawn)
            if not isinstance(outcome, Match):
                wrong[right, device] = str(outcome)
    assert wrong == {}


FOUR = ("tensor", "row", "block_1x128", "nvfp4")


@pytest.mark.parametrize(("left", "right"), list(itertools.product(FOUR, FOUR)))
def test_global_scales_and_a_bias_are_applied_to_sums_of_float32(left, right):
    kinds = [(layout, ELEMENTS[layout][-1]) for layout in (left, right)]
    present = ("bias", "global_scale_a", "global_scale_b")
    sizes = [(1, 1, 2), (1, 17, 130), (33, 1, 64), (5, 8, 0)]
    for size, out_dtype in itertools.product(sizes, ["float32", "bfloat16"]):
        drawn = draw(*kinds, out_dtype=out_dtype, present=present, sizes=size)
        for device in DEVICES:
            with numbers_of(device):
                outcome = held(*drawn)
            assert isinstance(outcome, Match), (size, out_dtype, device, outcome)


@pytest.mark.parametrize("device", DEVICES)
def test_float32_results_hold_more_digits_than_operands_in_bfloat16_give(device):
    for layout in ("tensor", "block_1x128", "block_128x128", "row"):
        inputs, truth = draw((layout, "float8_e5m2"), (layout, "float8_e4m3fn"), out_dtype="float32")
        positional, keywords = inputs.keywords(inputs.tensors)
        with numbers_of(device):
            found = module.scaled_mm(*positional, **keywords).double()
        want = truth.outputs["y"]
        assert float((found - want).abs().max() / want.abs().max()) < 2.0**-15
