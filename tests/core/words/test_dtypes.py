"""Dtypes by name."""

from __future__ import annotations

import pytest

from portakernel.errors import UnknownNameError
from portakernel.words.dtypes import DTYPES, SCALE_FORMATS, parse_dtype

ABBREVIATIONS = {
    "fp64": "float64",
    "double": "float64",
    "fp32": "float32",
    "float": "float32",
    "f32": "float32",
    "fp16": "float16",
    "half": "float16",
    "f16": "float16",
    "bf16": "bfloat16",
    "BF16": "bfloat16",
    "fp8": "float8_e4m3fn",
    "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
}


@pytest.mark.parametrize("name", DTYPES)
def test_a_dtype_is_found_by_torchs_name_with_and_without_its_module(name):
    assert parse_dtype(name) is DTYPES[name]
    assert parse_dtype(f"torch.{name}") is DTYPES[name]


@pytest.mark.parametrize("prefix", ["", "torch."])
@pytest.mark.parametrize(("short", "full"), ABBREVIATIONS.items())
def test_an_abbreviation_is_not_accepted_but_its_full_name_is_offered(short, full, prefix):
    with pytest.raises(UnknownNameError) as caught:
        parse_dtype(prefix + short)
    assert str(caught.value) == f"unknown dtype {prefix + short!r}; did you mean {full!r}?"


def test_a_misspelt_dtype_offers_the_nearest():
    with pytest.raises(UnknownNameError) as caught:
        parse_dtype("bfloat61")
    assert str(caught.value).startswith("unknown dtype 'bfloat61'; did you mean 'bfloat16'")
    assert (caught.value.kind, caught.value.unknown) == ("dtype", "bfloat61")
    assert caught.value.known == tuple(sorted(DTYPES))


def test_a_name_close_to_none_says_how_many_there_are():
    with pytest.raises(UnknownNameError, match=rf"^unknown dtype 'zzz'; {len(DTYPES)} are known, none of them close$"):
        parse_dtype("zzz")


@pytest.mark.parametrize(
    ("name", "bits", "kind", "mantissa_bits", "min_exponent", "itemsize"),
    [
        ("float64", 64, "float", 52, -1022, 8),
        ("float32", 32, "float", 23, -126, 4),
        ("float16", 16, "float", 10, -14, 2),
        ("bfloat16", 16, "float", 7, -126, 2),
        ("float8_e4m3fn", 8, "float", 3, -6, 1),
        ("float8_e4m3fnuz", 8, "float", 3, -7, 1),
        ("float8_e5m2", 8, "float", 2, -14, 1),
        ("float8_e5m2fnuz", 8, "float", 2, -15, 1),
        ("int64", 64, "int", 0, 0, 8),
        ("uint8", 8, "uint", 0, 0, 1),
        ("bool", 8, "bool", 0, 0, 1),
    ],
)
def test_a_dtypes_numbers_are_those_of_its_standard(name, bits, kind, mantissa_bits, min_exponent, itemsize):
    dtype = DTYPES[name]
    found = (dtype.bits, dtype.kind, dtype.mantissa_bits, dtype.min_exponent, dtype.itemsize)
    assert found == (bits, kind, mantissa_bits, min_exponent, itemsize)


def test_scale_formats_are_those_of_the_design():
    assert SCALE_FORMATS == ("tensor", "row", "block_1x128", "block_128x128", "mxfp8", "mxfp4", "nvfp4")


def test_the_tables_cannot_be_changed():
    with pytest.raises(TypeError):
        DTYPES["float12"] = DTYPES["float16"]
    with pytest.raises(AttributeError):
        DTYPES["float16"].bits = 12
