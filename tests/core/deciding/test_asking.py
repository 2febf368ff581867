"""Questions: as much of a call as somebody knows, without tensors."""

from __future__ import annotations

import ast
import re
from dataclasses import replace

import pytest

from portakernel.claims.request import Phase
from portakernel.contracts import contract, own_contracts
from portakernel.deciding.asking import ask
from portakernel.errors import ArgumentTypeError, ArgumentValueError, PortakernelError, UnknownNameError
from portakernel.words.dtypes import DTYPES
from portakernel.words.target import Target

HERE = Target("nvidia", "sm_90")


def question(op: str = "rms_norm", **known):
    return ask(contract(op), HERE, **known)


@pytest.mark.parametrize(
    ("op", "given", "found"),
    [
        ("add", None, {}),
        ("add", "bfloat16", {"x": "bfloat16", "y": "bfloat16"}),
        ("add", "torch.float16", {"x": "float16", "y": "float16"}),
        ("add", {"x": "float16"}, {"x": "float16", "y": "float16"}),
        ("add", {"x": "float16", "y": "float16"}, {"x": "float16", "y": "float16"}),
        ("rms_norm", "bfloat16", {"x": "bfloat16", "weight": "bfloat16"}),
        ("rms_norm", {"x": "bfloat16"}, {"x": "bfloat16", "weight": "bfloat16"}),
        ("rms_norm", {"x": "bfloat16", "weight": "float32"}, {"x": "bfloat16", "weight": "float32"}),
        ("rms_norm", {"weight": "float32"}, {"weight": "float32"}),
        ("rms_norm", {}, {}),
    ],
)
def test_one_dtype_is_for_all_that_may_have_it_and_an_argument_follows_the_one_it_depends_on(op, given, found):
    assert question(op, dtypes=given).dtypes == found


def test_one_dtype_goes_only_to_the_arguments_that_may_have_it():
    x, y = contract("add").tensors
    mixed = replace(contract("add"), tensors=(x, replace(y, dtypes=("int32",))))
    assert ask(mixed, HERE, dtypes="int32").dtypes == {"y": "int32"}
    assert ask(mixed, HERE, dtypes="float16").dtypes == {"x": "float16", "y": "int32"}


@pytest.mark.parametrize(
    ("op", "given", "error", "message"),
    [
        (
            "add",
            "int8",
            ArgumentTypeError,
            "add: x and y cannot be int8; x and y can be float32, float16 or bfloat16",
        ),
        ("softmax", "bool", ArgumentTypeError, "softmax: x cannot be bool; x can be float32, float16 or bfloat16"),
        (
            "scaled_mm",
            "torch.bfloat16",
            ArgumentTypeError,
            (
                "scaled_mm: a, b, scale_a and scale_b cannot be bfloat16; a and b can be float8_e4m3fn,"
                " float8_e4m3fnuz, float8_e5m2 or float8_e5m2fnuz; scale_a and scale_b can be float32. bias and"
                " out_dtype can: by name, as in {'bias': 'bfloat16'}"
            ),
        ),
        (
            "quantize_fp8",
            {"x": "float64"},
            ArgumentTypeError,
            "quantize_fp8: x is float64; it must be float32 or float16 or bfloat16",
        ),
        ("add", {"x": "float32", "y": "float16"}, ArgumentTypeError, "add: y is float16; it must be float32"),
        (
            "rms_norm",
            {"x": "float16", "weight": "bfloat16"},
            ArgumentTypeError,
            "rms_norm: weight is bfloat16; it must be float16 or float32",
        ),
        ("add", "bfloat61", UnknownNameError, "unknown dtype 'bfloat61'; did you mean 'bfloat16' or "),
        ("add", {"x": "bf16"}, UnknownNameError, "unknown dtype 'bf16'; did you mean 'bfloat16'?"),
        ("add", {"z": "float16"}, UnknownNameError, "add: unknown tensor argument 'z'; known: x, y"),
        (
            "rms_norm",
            {"wieght": "float16"},
            UnknownNameError,
            "rms_norm: unknown tensor argument 'wieght'; did you mean 'weight'?",
        ),
    ],
)
def test_dtypes_that_the_op_does_not_accept_are_refused(op, given, error, message):
    with pytest.raises(error, match=f"^{re.escape(message)}"):
        question(op, dtypes=given)


@pytest.mark.parametrize("op", own_contracts())
def test_what_is_offered_in_a_refused_dtypes_place_is_accepted_and_never_the_same(op):
    refused = 0
    for dtype in DTYPES:
        try:
            question(op, dtypes=dtype)
        except ArgumentTypeError as error:
            refused += 1
            takes, _, elsewhere = str(error).partition("; ")[2].partition(". ")
            offered = set(re.findall(r"\w+", takes)) & DTYPES.keys()
            assert offered
            assert dtype not in offered
            for instead in offered:
                question(op, dtypes=instead)
            if formats := re.search(r"goes with scale format (.*): say which", elsewhere):
                for name in formats[1].split(" or "):
                    assert dtype in question(op, dtypes=dtype, formats=name).dtypes.values()
            elif elsewhere:
                named = ast.literal_eval(elsewhere.partition("as in ")[2])
                assert dtype in question(op, dtypes=named).dtypes.values()
    assert refused


@pytest.mark.parametrize(
    ("op", "shapes", "dims"),
    [
        ("rms_norm", None, {}),
        ("rms_norm", {"x": (2, 3, 8)}, {"M": 6, "N": 8}),
        ("rms_norm", {"x": [8]}, {"M": 1, "N": 8}),
        ("rms_norm", {"weight": (8,)}, {"N": 8}),
        ("rms_norm", {"x": (0, 8), "weight": (8,)}, {"M": 0, "N": 8}),
        ("add", {"x": ()}, {"M": 1}),
        ("add", {"x": (4, 5), "y": (4, 5)}, {"M": 20}),
    ],
)
def test_shapes_give_the_dimensions(op, shapes, dims):
    assert question(op, shapes=shapes).dims == dims


@pytest.mark.parametrize(
    ("op", "shapes", "error", "message"),
    [
        ("rms_norm", {"x": ()}, ArgumentValueError, "rms_norm: x has shape (), but needs (..., N)"),
        ("rms_norm", {"weight": (8, 1)}, ArgumentValueError, "rms_norm: weight has shape (8, 1), but needs (N,)"),
        (
            "rms_norm",
            {"x": (2, 8), "weight": (9,)},
            ArgumentValueError,
            "rms_norm: weight has shape (9,), so N = 9, but x has N = 8",
        ),
        (
            "add",
            {"x": (2, 3), "y": (3, 2)},
            ArgumentValueError,
            (
                "add: y has shape (3, 2), but x has leading dimensions (2, 3); they must be equal (broadcasting"
                " is refused)"
            ),
        ),
        (
            "add",
            {"x": (2, 3), "y": (1,)},
            ArgumentValueError,
            "add: y has shape (1,), but x has leading dimensions (2, 3); they must be equal (broadcasting is refused)",
        ),
        ("add", {"x": (2, -3)}, ArgumentValueError, "add: a dimension is negative in {'x': (2, -3)}"),
        ("add", {"z": (2,)}, UnknownNameError, "add: unknown tensor argument 'z'; known: x, y"),
    ],
)
def test_shapes_that_the_op_does_not_accept_are_refused(op, shapes, error, message):
    with pytest.raises(error) as caught:
        question(op, shapes=shapes)
    assert str(caught.value) == message


@pytest.mark.parametrize("shapes", [(4, 8), {"x": 5}, {"x": "4x8"}, {"x": (4.5, 8)}, {"x": (None, 8)}, {"x": None}])
def test_what_is_no_shape_is_refused_in_our_own_words(shapes):
    with pytest.raises(PortakernelError, match=r"^add: "):
        question("add", shapes=shapes)


@pytest.mark.parametrize("dtypes", [16, ["float16"], {"x": 16}])
def test_what_is_no_dtype_is_refused_in_our_own_words(dtypes):
    with pytest.raises(PortakernelError):
        question("add", dtypes=dtypes)


@pytest.mark.parametrize(
    ("given", "features"),
    [
        (None, {}),
        ({"weight_offset": 1.0}, {"weight_offset": 1.0}),
        ({"weight_offset": 0.0}, {}),
        ({"weight_offset": 0}, {}),
        ({"eps": 0.5}, {}),
    ],
)
def test_only_a_feature_that_is_not_neutral_is_asked_for(given, features):
    assert question(values=given).features == features


def test_an_unknown_parameter_offers_the_nearest():
    with pytest.raises(UnknownNameError) as caught:
        question(values={"weight_ofset": 1.0})
    assert str(caught.value) == "rms_norm: unknown parameter 'weight_ofset'; did you mean 'weight_offset' or 'weight'?"
    with pytest.raises(UnknownNameError) as caught:
        question("add", values={"eps": 1.0})
    assert str(caught.value).startswith("add: unknown parameter 'eps'; ")


@pytest.mark.parametrize("given", [{"weight_offset": "big"}, {"eps": None}, {"weight_offset": True}])
def test_a_parameter_is_a_number_in_a_question_as_in_a_call(given):
    (name,) = given
    with pytest.raises(ArgumentTypeError, match=f"^rms_norm: {name} must be a number( from 0 up)?; this is "):
        question(values=given)


def test_a_question_takes_tensors_to_be_contiguous_and_aligned():
    facts = {"contiguous": True, "flat_rows": True, "stride_last": 1, "alignment": 16}
    expected = {f"{tensor}.{fact}": value for tensor in ("x", "weight") for fact, value in facts.items()}
    assert question().facts == expected


def test_a_question_keeps_its_op_target_phase_and_what_the_contract_saves():
    request = question(phase=Phase.TRAINING)
    assert (request.op, request.target, request.phase, request.saved) == ("rms_norm", HERE, Phase.TRAINING, ("rstd",))
    assert question("add").saved == ()
    assert (request.device, request.attached, request.requires) == (None, (), frozenset())


@pytest.mark.parametrize(("op", "by"), [("dequantize", "format"), ("scaled_mm", "format_a")])
def test_a_dtype_that_goes_with_other_scale_formats_is_refused_with_those(op, by):
    with pytest.raises(ArgumentTypeError) as caught:
        ask(contract(op), HERE, dtypes="float4_e2m1fn_x2")
    assert str(caught.value).endswith(
        " can be float32. float4_e2m1fn_x2 goes with scale format mxfp4 or nvfp4: say which, as in format='mxfp4'"
        " (--format mxfp4)"
    )
    first = contract(op).names[0]
    with pytest.raises(ArgumentTypeError) as caught:
        ask(contract(op), HERE, dtypes={first: "float4_e2m1fn_x2"})
    assert str(caught.value) == (
        f"{op}: {first} is float4_e2m1fn_x2; it must be float8_e4m3fn or float8_e4m3fnuz or float8_e5m2 or"
        f" float8_e5m2fnuz. float4_e2m1fn_x2 goes with {by}='mxfp4' or 'nvfp4'"
    )
    assert ask(contract(op), HERE, dtypes={first: "float4_e2m1fn_x2"}, formats="mxfp4").formats


@pytest.mark.parametrize(
    ("op", "dtype", "formats"),
    [
        ("grouped_mm", "float8_e5m2", "'row' or 'block'"),
        ("moe_mlp", "float8_e4m3fn", "'row' or 'block'"),
    ],
)
def test_a_dtype_that_goes_with_other_formats_of_matrices_is_refused_with_those(op, dtype, formats):
    first = contract(op).names[0]
    with pytest.raises(ArgumentTypeError) as caught:
        ask(contract(op), HERE, dtypes={first: dtype})
    assert str(caught.value) == (
        f"{op}: {first} is {dtype}; it must be float32 or float16 or bfloat16, or float64, which the reference serves."
        f" {dtype} goes with format={formats}"
    )


def test_bytes_are_refused_with_the_view_that_others_keep_so():
    dtypes = {"x": "float32", "w_in": "float4_e2m1fn_x2", "w_out": "float4_e2m1fn_x2"}
    for name, narrow in (("w_in", "float4_e2m1fn_x2"), ("scale_in", "float8_e8m0fnu")):
        with pytest.raises(ArgumentTypeError) as caught:
            ask(contract("moe_mlp"), HERE, dtypes={**dtypes, name: "uint8"}, values={"format": "mxfp4"})
        text = f"moe_mlp: {name} is uint8; it must be {narrow}; such bytes are {name}.view(torch.{narrow})"
        assert str(caught.value) == text


def test_a_dtype_that_goes_with_no_scale_format_is_refused_without_any():
    with pytest.raises(ArgumentTypeError) as caught:
        ask(contract("quantize_fp4"), HERE, dtypes="float4_e2m1fn_x2")
    assert str(caught.value) == ("quantize_fp4: x cannot be float4_e2m1fn_x2; x can be float32, float16 or bfloat16")
