"""A parameter whose default is None, which it may not be, has to be given."""

from __future__ import annotations

import random

import pytest

from portakernel.contract import Parameter
from portakernel.contract.signature_text import arguments, document
from portakernel.contracts import contract
from portakernel.errors import ArgumentTypeError
from portakernel_kit.conformance.drawn.levels import draw_value, parameter_factors

SCALE = Parameter("scale", None, summary="what products are multiplied by")


def test_without_it_a_call_is_told_what_it_is():
    text = "^op: scale is not given; it must be a number: what products are multiplied by$"
    with pytest.raises(ArgumentTypeError, match=text):
        SCALE.canonical("op", None)
    assert SCALE.canonical("op", 2) == 2.0
    assert not Parameter("scale", None, optional=True).is_required


def test_signature_and_docstring_have_no_default_of_it():
    described = contract("mla_decode")
    assert "scale" in arguments(described)
    assert "scale: a value that has to be given. what products" in document(described)


def test_the_kit_draws_it_always():
    levels = parameter_factors(SCALE)["scale"]
    assert "default" not in levels
    assert all(isinstance(draw_value(SCALE, {"scale": level}, random.Random(0)), float) for level in levels)
    assert isinstance(draw_value(SCALE, {}, random.Random(0)), float)
