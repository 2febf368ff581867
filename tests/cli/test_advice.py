"""What `explain` advises: followed, it is not refused by the same kernel again, and changes no result."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from portakernel.claims.capability import ReasonCode, Rejection
from portakernel.cli.advice import advice
from portakernel.runtime import dispatcher


def told(run: Callable, line: str, kernel: str) -> str:
    """What is advised for ``kernel``, as one line."""
    out = run(f"explain {line}").out
    steps = " ".join(out.partition("\nWhat to do\n")[2].split())
    return next((step.strip() for step in steps.split("For ") if step.startswith(f"{kernel}: ")), "")


@pytest.mark.parametrize(
    ("line", "kernel", "advised"),
    [
        (
            "linear_act --target h100 --dtype float16 --use torch.linear_act",
            "torch.linear_act",
            "torch.linear_act: ask for activation=relu or gelu_tanh, or another kernel.",
        ),
        (
            "linear_act --target h100 --dtype float16 --use torch.linear_act --set activation=silu",
            "torch.linear_act",
            "torch.linear_act: ask for activation=relu or gelu_tanh, or another kernel.",
        ),
        (
            "gelu_and_mul --target h100 --use conch --dtype float32",
            "conch.gelu_and_mul",
            "conch.gelu_and_mul: ask for approximate=tanh, or another kernel.",
        ),
        (
            "rms_norm --target h100 --dtype bfloat16 --set weight_offset=1.0 --use torch.rms_norm",
            "torch.rms_norm",
            "torch.rms_norm: do without weight_offset.",
        ),
    ],
)
def test_of_a_value_those_that_the_kernel_takes_are_advised(run: Callable, line: str, kernel: str, advised: str):
    assert told(run, line, kernel) == advised


def test_a_check_that_needs_a_value_is_not_answered_with_its_default():
    text = "adds 1 to the weight (Gemma's form): needs weight_offset=1.0; this is 0.0"
    rejection = Rejection(ReasonCode.FEATURE, text, "weight_offset")
    kernel = dispatcher().registry.kernels["conch.rms_norm_gemma"]
    assert advice(kernel, rejection) == "ask as its reason says, or use another kernel"


@pytest.mark.parametrize(
    ("line", "kernel", "advised"),
    [
        (
            "rms_norm --target h100 --use flashinfer --dtype bfloat16 --shape x=1x200000",
            "flashinfer.rms_norm",
            "use another kernel for such sizes",
        ),
        (
            "softmax --target h100 --use quack.softmax --dtype bfloat16 --shape x=1x2000000",
            "quack.softmax",
            "use another kernel for such sizes",
        ),
        (
            "attention --target h100 --use torch.attention_flash --dtype bfloat16 --shape q=1x8x4x300",
            "torch.attention_flash",
            "use another kernel for such sizes",
        ),
    ],
)
def test_what_is_normalised_or_contracted_is_not_to_be_split_or_padded(
    run: Callable, line: str, kernel: str, advised: str
):
    assert told(run, line, kernel) == f"{kernel}: {advised}."


@pytest.mark.parametrize(
    ("kernel", "parameter", "text", "advised"),
    [
        (
            "triton.rms_norm",
            "M",
            "needs M >= 1 and <= 65535; this is 70000",
            "split the call along M, or use another kernel for such sizes",
        ),
        (
            "torch.attention_flash",
            "B",
            "needs B <= 65535; this is 70000",
            "split the call along B, or use another kernel for such sizes",
        ),
        (
            "triton.rms_norm",
            "M",
            "needs M >= 1 and <= 65535; this is 0",
            "use another kernel for such sizes",
        ),
        (
            "triton.rms_norm",
            "M",
            "needs M <= 65535 and a multiple of 8; this is 12",
            "use another kernel for such sizes",
        ),
        (
            "triton.quantize_fp8",
            "M",
            "needs M <= 65535; this is 70000",
            "use another kernel for such sizes",
        ),
        (
            "triton.rotary_embedding",
            "S",
            "needs S <= 65535; this is 70000",
            "use another kernel for such sizes",
        ),
    ],
    ids=["rows", "batch", "too small", "no multiple", "one scale for all rows", "implied positions"],
)
def test_a_call_is_to_be_split_along_rows_alone_that_do_not_know_of_each_other(
    kernel: str, parameter: str, text: str, advised: str
):
    rejection = Rejection(ReasonCode.LIMIT, text, parameter)
    assert advice(dispatcher().registry.kernels[kernel], rejection) == advised


@pytest.mark.parametrize(
    ("line", "kernel", "beside"),
    [
        (
            "quantize_fp4 --target intel:ptl --set format=mxfp4 --dtype bfloat16 --shape x=3x130",
            "inductor.quantize_fp4",
            "scale_format",
        ),
        ("dequantize --target h100 --use inductor --format nvfp4", "inductor.dequantize", "scale_format"),
        ("rms_norm --target h100 --dtype bfloat16 --deny inductor", "inductor.rms_norm", "denied_by_policy"),
        ("rms_norm --target nvidia:sm_70 --dtype bfloat16", "inductor.rms_norm", "arch"),
    ],
)
def test_no_build_is_promised_where_something_else_stands_in_its_way(
    run: Callable, line: str, kernel: str, beside: str
):
    answer = json.loads(run(f"explain {line} --json").out)
    (found,) = [candidate["rejections"] for candidate in answer["candidates"] if candidate["kernel"] == kernel]
    texts = {one["code"]: one["text"] for one in found}
    assert beside in texts
    assert texts["needs_build"] == "is not built for these sizes, dtypes and values"
    assert "warmup" not in told(run, line, kernel)


def test_where_nothing_else_stands_in_its_way_the_build_is_advised(run: Callable):
    line = "rms_norm --target h100 --dtype bfloat16 --shape x=4x64 --use inductor"
    call = "portakernel.warmup(\"rms_norm\", dtype='bfloat16', shape={'x': (4, 64)})"
    assert told(run, line, "inductor.rms_norm") == f"inductor.rms_norm: {call} builds it there."
