"""Dtypes and scale formats by name, with the numbers that selection and conformance need; no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

from portakernel.errors import ArgumentTypeError, UnknownNameError

Kind = Literal["float", "int", "uint", "bool"]
# What torch.autograd.gradcheck computes in, and no kernel but the references.
FLOAT64 = "float64"


@dataclass(frozen=True, slots=True)
class DType:
    """One element type, named as torch names it.

    ``mantissa_bits`` counts stored fraction bits and ``min_exponent`` is that of the smallest normal number,
    so that one unit in the last place at ``v`` is ``2 ** (max(floor(log2|v|), min_exponent) - mantissa_bits)``.
    """

    name: str
    bits: int
    kind: Kind
    mantissa_bits: int = 0
    min_exponent: int = 0

    @property
    def itemsize(self) -> int:
        """Bytes of one stored element (two float4 values share one)."""
        return max(1, self.bits // 8)


# Sources: IEEE 754-2019 (float16/32/64); OCP 8-bit Floating Point Specification 1.0 (e4m3fn, e5m2); OCP Microscaling
# Formats 1.0 (e8m0, e2m1); arXiv 2206.02915 for the FNUZ variants; bfloat16 is float32's upper half.
_ALL = (
    DType("float64", 64, "float", 52, -1022),
    DType("float32", 32, "float", 23, -126),
    DType("float16", 16, "float", 10, -14),
    DType("bfloat16", 16, "float", 7, -126),
    DType("float8_e4m3fn", 8, "float", 3, -6),
    DType("float8_e4m3fnuz", 8, "float", 3, -7),
    DType("float8_e5m2", 8, "float", 2, -14),
    DType("float8_e5m2fnuz", 8, "float", 2, -15),
    DType("float8_e8m0fnu", 8, "float", 0, -127),
    DType("float4_e2m1fn_x2", 8, "float", 1, 0),
    DType("int64", 64, "int"),
    DType("int32", 32, "int"),
    DType("int16", 16, "int"),
    DType("int8", 8, "int"),
    DType("uint8", 8, "uint"),
    DType("bool", 8, "bool"),
)

DTYPES: Mapping[str, DType] = MappingProxyType({dtype.name: dtype for dtype in _ALL})

# How the scales of a quantised tensor are laid out over it. Explicit arguments of the quantised ops, because tensors
# alone do not determine them: at K = 128, `row` and `block_1x128` have scales of one shape.
ScaleFormat = Literal["tensor", "row", "block_1x128", "block_128x128", "mxfp8", "mxfp4", "nvfp4"]
SCALE_FORMATS: tuple[str, ...] = get_args(ScaleFormat)

_ABBREVIATIONS = {
    "fp64": "float64",
    "double": "float64",
    "fp32": "float32",
    "float": "float32",
    "f32": "float32",
    "fp16": "float16",
    "half": "float16",
    "f16": "float16",
    "bf16": "bfloat16",
    "fp8": "float8_e4m3fn",
    "e4m3": "float8_e4m3fn",
    "e5m2": "float8_e5m2",
}


def parse_dtype(name: object) -> DType:
    """The dtype called ``name`` (``bfloat16``, also ``torch.bfloat16``).

    Raises:
        UnknownNameError: no dtype has that name. Abbreviations are not accepted, but the full name is offered.
    """
    if not isinstance(name, str):
        raise ArgumentTypeError(
            f"a dtype is given by its name, such as 'bfloat16'; this is {type(name).__name__} {name!r}"
        )
    short = name.removeprefix("torch.")
    dtype = DTYPES.get(short)
    if dtype is None:
        raise UnknownNameError("dtype", name, DTYPES, meant=_ABBREVIATIONS.get(short.lower()))
    return dtype
