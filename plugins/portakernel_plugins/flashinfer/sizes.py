"""What FlashInfer's attention can reach: it numbers elements and tokens in 32 bits, and merges a query in one block."""

from __future__ import annotations

from portakernel.authoring import ReasonCode, Rejection

_NUMBERS = 2**32
_THREADS = 1024


def check_paged(S: int, H: int, D: int, E: int, B: int, W: int, P: int) -> Rejection | None:
    """Whether keys and values are of one width, and queries and tokens of all sequences within reach."""
    if D != E:
        return Rejection(ReasonCode.LIMIT, f"needs D = E; this is D = {D}, E = {E}", "E")
    return _reach("S * H * D", S * H * D, "S") or _reach("B * W * P", B * W * P, "W")


def check_merge(S: int, H: int, E: int) -> Rejection | None:
    """Whether the heads of a query fit into a block of threads, of which each has 8 values or more."""
    return check_merges(1, S, H, E)


def check_merges(R: int, S: int, H: int, E: int) -> Rejection | None:
    """The same for ``R`` parts."""
    most = _THREADS * max(8, E // 32) // E
    if most < H:
        text = f"needs H <= {most} where E = {E}: the heads of a query are one block of threads; this is {H}"
        return Rejection(ReasonCode.LIMIT, text, "H")
    return _reach("R * S * H * E", R * S * H * E, "S")


def _reach(what: str, count: int, parameter: str) -> Rejection | None:
    if count < _NUMBERS:
        return None
    text = f"needs {what} < 2**32, in whose 32 bits FlashInfer numbers them; this is {count}"
    return Rejection(ReasonCode.LIMIT, text, parameter)
