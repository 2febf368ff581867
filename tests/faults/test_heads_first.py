"""Attention's tensors with heads before positions: refused with the way out, or warned of where they happen to fit."""

from __future__ import annotations

import warnings

import pytest

from portakernel.contract.near_misses import heads_come_first

WAY_OUT = "pass x.transpose(1, 2) of each, which copies nothing"


def _called(q: list[int], k: list[int]) -> list[str]:
    import torch

    from portakernel import ops
    from portakernel.errors import ArgumentValueError, LayoutWarning

    said = []
    for _ in range(2):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                ops.attention(torch.randn(q), torch.randn(k), torch.randn(k))
            except ArgumentValueError as error:
                said.append(str(error))
        said += [f"warned: {one.message}" for one in caught if one.category is LayoutWarning]
        said += [one.filename for one in caught if one.category is LayoutWarning]
    return said


def test_where_they_fit_it_is_warned_of_once_at_the_callers_line(fault):
    said = fault(_called, [1, 2, 300, 8], [1, 2, 300, 8]).returned
    assert said == [
        (
            "warned: attention takes (B, S, H, D), and read as that these tensors have S=2, T=2,"
            " H=300, G=300, which looks"
            f" like (B, H, S, D). If it is, {WAY_OUT}"
        ),
        __file__,
    ]


def test_grouped_heads_are_warned_of_too(fault):
    said = fault(_called, [1, 8, 64, 8], [1, 2, 64, 8]).returned
    assert said[0].startswith("warned: attention takes (B, S, H, D), and read as that these tensors have S=8, T=2,")
    assert len(said) == 2


def test_where_they_do_not_fit_the_error_says_how_they_would(fault):
    refused = "attention: needs H % G == 0; this is G = 40, H = 1"
    text = f"{refused}; with heads before positions, (B, H, S, D), they would fit: {WAY_OUT}"
    assert fault(_called, [1, 8, 1, 16], [1, 2, 40, 16]).returned == [text, text]


def test_tensors_as_documented_are_not_warned_of(fault):
    assert fault(_called, [1, 40, 8, 16], [1, 40, 2, 16]).returned == []


@pytest.mark.parametrize(
    "dims",
    [
        {"S": 1, "T": 4096, "H": 128, "G": 8},  # decoding
        {"S": 4096, "T": 77, "H": 8, "G": 8},  # text that an image looks at
        {"S": 16, "T": 16, "H": 32, "G": 32},
        {"S": 1, "T": 1, "H": 64, "G": 64},  # a first token
        {"S": 1, "T": 1, "H": 128, "G": 128},
        {"S": 32, "T": 16, "H": 16, "G": 16},
    ],
)
def test_shapes_of_models_are_not_suspected(dims):
    assert not heads_come_first(dims)
