"""How far results of drawn requests may be off, beyond what ops' tolerances say for their own cases."""

from __future__ import annotations

from collections.abc import Mapping

# Rows that the tolerances of ops' own cases hold for, sums in any order.
LONG_ROW = 2048
# Of the millions of elements of drawn requests the worst is so many times further off than of the cases' thousands.
FARTHEST = 1.5
# By how many digits float32 is finer.
_FINER_DIGITS = {"float16": 13, "bfloat16": 16}


def growth(longest_row: int) -> float:
    """How many times the contract's tolerance a float32 result of such rows may be off.

    A sum of n terms of one size, one after the other, loses n/2 units in the last place at most (Higham 2002,
    Accuracy and Stability of Numerical Algorithms, 4.2).
    """
    return max(FARTHEST, longest_row / LONG_ROW)


def grown(given: Mapping[str, float], times: float) -> dict[str, float]:
    """Tolerances with what float32 may lose so many times over, in units of each dtype.

    Results of 16 bits are sums of float32, rounded once: what these are off may be on the other side of a half.
    """
    allowed = dict(given)
    for kind, ulp in given.items():
        name = kind.rpartition(" ")[2]
        single = given.get(kind.removesuffix(name) + "float32", 0.0) * times
        if name == "float32":
            allowed[kind] = single
        elif name in _FINER_DIGITS and ulp < 1.0:
            allowed[kind] = max(ulp, 0.5 + single / 2 ** _FINER_DIGITS[name])
    return allowed
