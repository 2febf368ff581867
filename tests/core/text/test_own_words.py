"""Ops that have a ``dtype`` or ``format`` of their own: with tensors and in words, in ``explain`` and in ``warmup``."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import portakernel
from portakernel.contracts import contract, own_contracts
from portakernel.deciding.asking import ask
from portakernel.errors import ArgumentTypeError, ArgumentValueError, UnknownNameError
from portakernel.words.target import Target

torch = pytest.importorskip("torch")
HERE = Target("nvidia", "sm_100")
OWN = {
    op: words
    for op, described in own_contracts().items()
    if (words := [p.name for p in described.parameters if p.name in ("dtype", "format")])
}


def _tensors(op: str) -> list[Any]:
    x, weight = torch.ones(4, 64), torch.ones(64)
    return {
        "dequantize": [torch.ones(4, 64).to(torch.float8_e4m3fn), torch.ones(4, 1)],
        "add_rms_norm_quantize": [x, x.clone(), weight],
        "rms_norm_quantize": [x, weight],
    }.get(op, [x])


def _other(op: str, word: str) -> str:
    parameter = contract(op).parameter(word)
    return next(choice for choice in reversed(parameter.choices) if choice != parameter.default)


def test_nine_ops_have_such_words() -> None:
    assert len(OWN) == 9


@pytest.mark.parametrize("op", OWN)
def test_beside_tensors_they_are_the_ops_own(op: str) -> None:
    for word in OWN[op]:
        if word == "format" and op in ("dequantize", "grouped_mm", "moe_mlp"):
            continue  # which changes the tensors' dtypes too
        decision = portakernel.explain(op, *_tensors(op), **{word: _other(op, word)})
        assert decision.request.values[word] == _other(op, word)
        assert decision.request.device is not None


@pytest.mark.filterwarnings("ignore::portakernel.errors.FallbackWarning")
@pytest.mark.parametrize("op", ["quantize_fp8", "quantize_fp4"])
def test_warmup_takes_them_beside_tensors_too(op: str) -> None:
    (word,) = OWN[op]
    found = portakernel.warmup(op, *_tensors(op), kernel="reference", **{word: _other(op, word)})
    assert [call.request.values[word] for call in found.calls] == [_other(op, word)]


@pytest.mark.parametrize("asking", [portakernel.explain, portakernel.warmup])
def test_of_an_op_without_them_they_are_the_tensors_which_have_their_own(asking: Callable) -> None:
    with pytest.raises(ArgumentTypeError) as caught:
        asking("softmax", torch.ones(2, 3), dtype="float32", format="row")
    assert str(caught.value) == (
        f"{asking.__name__} takes tensors, or dtype, format, not both: softmax has no parameter called so, and its"
        " tensors have their own"
    )


@pytest.mark.parametrize("asking", [portakernel.explain, portakernel.warmup])
def test_a_wrong_value_of_the_ops_own_is_refused_as_by_the_op(asking: Callable) -> None:
    with pytest.raises(UnknownNameError, match=r"^quantize_fp8: unknown value of dtype 'float16'; "):
        asking("quantize_fp8", torch.ones(2, 3), dtype="float16")


def test_in_words_the_ops_own_dtype_stands_among_the_tensors() -> None:
    dtypes = {"x": "bfloat16", "dtype": "float8_e5m2"}
    request = portakernel.explain("quantize_fp8", target="b200", dtype=dtypes).request
    assert (request.dtypes, request.values["dtype"]) == (dtypes, "float8_e5m2")
    request = portakernel.explain("scaled_mm", target="b200", dtype={"out_dtype": "float32"}).request
    assert (request.dtypes["out_dtype"], request.values["out_dtype"]) == ("float32", "float32")


def test_in_words_the_ops_own_format_goes_by_its_tensor_or_by_its_name() -> None:
    for form in ("mxfp4", {"q": "mxfp4"}, {"format": "mxfp4"}):
        request = portakernel.explain("quantize_fp4", target="b200", dtype="bfloat16", format=form).request
        assert (request.formats, request.values["format"]) == ({"q": "mxfp4"}, "mxfp4")


@pytest.mark.filterwarnings("ignore::portakernel.errors.FallbackWarning")
def test_warmup_in_words_takes_the_ops_own_dtype_too() -> None:
    words = {"dtype": {"x": "float32", "dtype": "float8_e5m2"}, "shape": {"x": (4, 64)}, "device": "cpu"}
    found = portakernel.warmup("quantize_fp8", kernel="reference", **words)
    assert [call.request.values["dtype"] for call in found.calls] == ["float8_e5m2"]


@pytest.mark.parametrize(
    ("op", "form", "message"),
    [
        ("quantize_fp4", {"q": "mxfp4", "format": "nvfp4"}, "format is given twice: mxfp4 and nvfp4"),
        ("quantize_fp4", {"format": "nvfp4", "q": "mxfp4"}, "format is given twice: nvfp4 and mxfp4"),
        ("scaled_mm", {"a": "mxfp8", "b": "mxfp8", "format_b": "row"}, "format_b is given twice: mxfp8 and row"),
    ],
)
def test_a_scale_format_given_by_its_tensor_and_by_its_name_is_refused_unless_it_is_the_same(op, form, message) -> None:
    with pytest.raises(ArgumentValueError) as caught:
        portakernel.explain(op, target="b200", format=form)
    assert str(caught.value) == f"{op}: {message}"
    same = dict.fromkeys(form, "mxfp4")
    assert set(portakernel.explain(op, target="b200", format=same).request.formats.values()) >= {"mxfp4"}


def test_one_thing_said_twice_is_refused_unless_it_is_the_same() -> None:
    described = contract("quantize_fp8")
    asked = ask(described, HERE, dtypes={"dtype": "float8_e5m2"}, values={"dtype": "float8_e5m2"})
    assert asked.values["dtype"] == "float8_e5m2"
    with pytest.raises(
        ArgumentValueError, match=r"^quantize_fp8: dtype is given twice: float8_e4m3fn and float8_e5m2$"
    ):
        ask(described, HERE, dtypes={"dtype": "float8_e4m3fn"}, values={"dtype": "float8_e5m2"})
    with pytest.raises(ArgumentValueError, match=r"^quantize_fp8: granularity is given twice: row and tensor$"):
        ask(described, HERE, formats="row", values={"granularity": "tensor"})


@pytest.mark.parametrize(
    ("op", "dtype", "format", "message"),
    [
        (
            "scaled_mm",
            "float8_e4m3fn",
            "nvfp4",
            (
                "scaled_mm: a and b cannot be float8_e4m3fn in this scale format, but float4_e2m1fn_x2; give another"
                " format, or the dtypes by name, as in {'a': 'float4_e2m1fn_x2'}"
            ),
        ),
        (
            "dequantize",
            "float8_e4m3fn",
            "nvfp4",
            (
                "dequantize: q cannot be float8_e4m3fn in this scale format, but float4_e2m1fn_x2; give another format,"
                " or the dtypes by name, as in {'q': 'float4_e2m1fn_x2'}"
            ),
        ),
    ],
)
def test_a_dtype_that_the_scale_format_bars_is_not_dropped(op: str, dtype: str, format: str, message: str) -> None:
    with pytest.raises(ArgumentTypeError, match=f"^{re.escape(message)}$"):
        portakernel.explain(op, target="b200", dtype=dtype, format=format)


def test_a_dtype_that_the_elements_can_have_is_taken_whatever_the_scales_have() -> None:
    request = portakernel.explain("scaled_mm", target="b200", dtype="float8_e4m3fn", format="mxfp8").request
    assert request.dtypes == {
        "a": "float8_e4m3fn",
        "b": "float8_e4m3fn",
        "scale_a": "float8_e8m0fnu",
        "scale_b": "float8_e8m0fnu",
        "out_dtype": "bfloat16",
    }
