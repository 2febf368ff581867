"""Which head dimensions FlashAttention-4 has a forward and a backward for."""

from __future__ import annotations

from portakernel.authoring import ReasonCode, Rejection

# Of keys and values: latent attention's, and half as wide.
_UNEQUAL = ((192, 128), (128, 64))


def check(D: int, E: int, H: int, G: int) -> Rejection | None:
    """Whether keys of ``D`` and values of ``E`` go together in ``H`` heads over ``G``."""
    if D == E:
        return None
    if (D, E) not in _UNEQUAL:
        pairs = " or ".join(f"D = {d} and E = {e}" for d, e in _UNEQUAL)
        return Rejection(ReasonCode.LIMIT, f"needs D = E, or {pairs}; this is D = {D}, E = {E}", "E")
    if H != G:
        text = f"with D = {D} and E = {E} its backward needs H = G; this is H = {H}, G = {G}"
        return Rejection(ReasonCode.LIMIT, text, "G")
    return None


# Keys of a block: where a page has as many, it is loaded whole, with what lies behind a sequence's last key.
_BLOCKS = {64: (128,), 128: (128,), 256: (64, 80)}


def check_pages(D: int, E: int, P: int) -> Rejection | None:
    """Whether values are as wide as keys, and rows of pages are loaded one by one."""
    if D != E:
        return Rejection(ReasonCode.LIMIT, f"needs D = E; this is D = {D}, E = {E}", "E")
    if P in _BLOCKS.get(D, ()):
        text = (
            f"needs pages of other than {P} tokens where D = {D}: it loads such pages whole, and multiplies what lies"
            " behind a sequence's last key by zero, which NaN survives"
        )
        return Rejection(ReasonCode.LIMIT, text, "P")
    return None
