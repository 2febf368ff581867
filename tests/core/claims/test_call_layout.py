"""How the tensors of a call in words lie: facts and strides, which agree, and what no tensor can be."""

from __future__ import annotations

import itertools

import pytest
import torch

from portakernel.claims.call_layout import CallLayout, facts_of, normal_strides
from portakernel.errors import ArgumentTypeError, ArgumentValueError, UnknownNameError
from portakernel.tensors.layout import layout_facts
from portakernel.tensors.scratch import laid
from portakernel.warming.outcome import Call

SHAPES = ((), (5,), (1,), (0,), (3, 4), (3, 1), (1, 4), (2, 3, 4), (2, 1, 4), (2, 0, 4), (2, 3, 1))


def of(layout=None, strides=None, shape=(4, 8)) -> CallLayout:
    return CallLayout.of("softmax", {"x": shape}, layout or {}, strides or {})


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_facts_follow_from_strides_as_those_of_a_tensor_do(shape):
    steps = [(0, 1, 2, 4, 12, 24)] * len(shape)
    for strides in itertools.product(*steps):
        tensor = torch.empty(2048).as_strided(shape, strides)
        known = {name.partition(".")[2]: value for name, value in layout_facts("x", tensor).items()}
        del known["alignment"]
        assert facts_of(shape, strides) == known, strides
        assert facts_of(shape, normal_strides(shape, strides)) == known, strides


@pytest.mark.parametrize(
    ("layout", "shape", "strides"),
    [
        ({"x.contiguous": False}, (4, 8), (16, 1)),
        ({"x.contiguous": False}, (2, 4, 8), (64, 16, 1)),
        ({"x.flat_rows": False}, (2, 4, 8), (64, 8, 1)),
        ({"x.contiguous": False}, (8,), (2,)),
        ({"x.stride_last": 3}, (4, 8), (24, 3)),
    ],
)
def test_facts_alone_have_strides(layout, shape, strides):
    found = of(layout, shape=shape)
    assert found.strides == {"x": strides}
    assert found.facts.items() >= layout.items()


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.int64], ids=str
)
@pytest.mark.parametrize("strides", [(16, 1), (1, 4), (1, 1), (8, 0), None], ids=str)
@pytest.mark.parametrize("alignment", [16, 8])
def test_operands_lie_as_it_is_said_and_keep_their_values(dtype, strides, alignment):
    x = (torch.arange(32) % 7).view(4, 8).to(dtype)
    layout = of({"x.alignment": alignment}, {"x": strides} if strides else None)
    made = laid({"x": x}, layout)["x"]
    facts = layout_facts("x", made)
    assert {name: value for name, value in facts.items() if name in layout.facts} == dict(layout.facts)
    assert facts["x.alignment"] == alignment
    assert made.stride() == (strides or (8, 1))
    if strides not in ((1, 1), (8, 0)):
        assert torch.equal(made.float(), x.float())
    else:  # shared elements are some of its own
        assert set(made.flatten().tolist()) <= set(x.flatten().tolist())


def test_what_is_plain_is_nothing_to_say():
    found = of({"x.contiguous": True, "x.alignment": 16}, {"x": (8, 1)})
    assert (found.facts, found.strides, str(found)) == ({}, {}, "")
    x = torch.zeros(4, 8)
    assert laid({"x": x}, found)["x"] is x


@pytest.mark.parametrize(
    ("shape", "layout", "strides", "text"),
    [
        (None, {}, {}, r"shape is given by name, such as \{'x': \(4, 8\)\}; this is None"),
        ({}, 3, {}, r"layout is given by name, such as \{'x.contiguous': False\}; this is 3"),
        ({}, {3: False}, {}, "layout is given by name"),
        ({}, {}, [8, 1], r"strides is given by name, such as \{'x': \(16, 1\)\}; this is \[8, 1\]"),
        ({}, {}, {"x": None}, r"strides of x are whole numbers of elements, such as \(16, 1\); this is None"),
    ],
)
def test_what_has_another_type_is_refused(shape, layout, strides, text):
    with pytest.raises(ArgumentTypeError, match=text):
        Call("softmax", "float32", shape, layout=layout, strides=strides).memory  # noqa: B018 - it raises


@pytest.mark.parametrize(
    ("layout", "strides", "error", "text"),
    [
        ({"x.contig": False}, {}, UnknownNameError, "unknown layout fact 'x.contig'; did you mean 'x.contiguous'"),
        ({"x.contiguous": 0}, {}, ArgumentTypeError, "x.contiguous is true or false; this is 0"),
        ({"x.alignment": 3}, {}, ArgumentTypeError, "x.alignment is 1, 2, 4, 8 or 16 bytes; this is 3"),
        ({"y.contiguous": False}, {}, ArgumentValueError, "the layout of y is given; give its shape, too"),
        (
            {},
            {"x": (1,)},
            ArgumentValueError,
            r"strides of x, whose shape is \[4, 8\], are 2 whole numbers of elements, 0 or more; these are \[1\]",
        ),
        (
            {"x.contiguous": False},
            {"x": (8, 1)},
            ArgumentValueError,
            r"x.contiguous: false is no layout of x with strides \[8, 1\]; \(4, 8\) has x.contiguous: true",
        ),
        ({"x.flat_rows": False}, {}, ArgumentValueError, "x.flat_rows: false is no layout of x of this shape"),
    ],
)
def test_what_no_tensor_can_be_is_refused(layout, strides, error, text):
    with pytest.raises(error, match=text):
        of(layout, strides)
