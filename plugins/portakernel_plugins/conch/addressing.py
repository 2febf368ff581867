"""What Conch's kernels can reach: they number the elements of a tensor in 32 bits."""

from __future__ import annotations

from portakernel.authoring import ReasonCode, Rejection

_MOST = 2**31 - 1


def check_rows(M: int, N: int) -> Rejection | None:
    """Whether ``M`` rows of ``N`` elements are within reach."""
    if M * N <= _MOST:
        return None
    return Rejection(ReasonCode.LIMIT, f"needs M * N <= {_MOST}; this is {M * N}: Conch numbers in 32 bits", "M")


def check_halves(M: int, N: int) -> Rejection | None:
    """The same for rows of two halves of ``N`` elements."""
    return check_rows(M, 2 * N)


def check_gemma(M: int, N: int, weight_offset: float) -> Rejection | None:
    """The same for a norm that adds 1 to its weight, whatever is asked."""
    if weight_offset != 1.0:
        text = f"adds 1 to the weight (Gemma's form): needs weight_offset=1.0; this is {weight_offset}"
        return Rejection(ReasonCode.FEATURE, text, "weight_offset")
    return check_rows(M, N)
