"""What of the ops Inductor cannot compile, or compiles to something that does not conform; each with its reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Dtypes and scale formats of an op (of every op: ``""``), or where none is named the op itself.

    An op may be excluded for some vendors alone.
    """

    op: str
    reason: str
    vendors: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()


_E8M0 = "float8_e8m0fnu is no dtype of Inductor's C++ (torch 2.13: missing from DTYPE_TO_CPP), and untried elsewhere"

EXCLUDED: tuple[Exclusion, ...] = (
    Exclusion("", _E8M0, dtypes=("float8_e8m0fnu",), formats=("mxfp8", "mxfp4")),
    Exclusion("quantize_mxfp8", _E8M0),
    Exclusion("attention_varlen", "the lengths of its sequences are read on the host, which a graph cannot do"),
    Exclusion(
        "cross_entropy",
        "on the CPU the reference reads the targets on the host, to refuse those out of range",
        vendors=("cpu",),
    ),
    Exclusion(
        "embedding_bag",
        "on the CPU the reference reads the offsets on the host, to refuse those out of order",
        vendors=("cpu",),
    ),
)
