"""Which scale format goes with a dtype that an argument cannot have in the one that was asked for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from portakernel.contract.parts import Choice, alternatives

if TYPE_CHECKING:
    from portakernel.contract.contract import Contract


def formats_for(contract: Contract, dtype: str, names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """By parameter, the scale formats in which some of ``names`` may be ``dtype``, of an op before choices are made."""
    holders = {parameter.name for parameter in contract.parameters if parameter.kind == "format"}
    found: dict[str, tuple[str, ...]] = {}
    for tensor in contract.tensors:
        dtypes = tensor.dtypes
        if tensor.name not in names or not isinstance(dtypes, Choice) or dtypes.by not in holders:
            continue
        if formats := tuple(
            name for name, own in dtypes.of.items() if any(dtype in group for group in alternatives(own))
        ):
            found[dtypes.by] = formats
    return found


def for_calls(contract: Contract, dtype: str, name: str) -> str:
    """A clause for who has a tensor: the keyword argument to give."""
    clauses = [f"{by}={' or '.join(map(repr, few))}" for by, few in formats_for(contract, dtype, [name]).items()]
    return f". {dtype} goes with {' and '.join(clauses)}" if clauses else ""


def in_words(contract: Contract, dtype: str, names: Iterable[str]) -> str:
    """A clause for who asks about a call without tensors: the format to give, in Python and on the command line."""
    by_parameter = formats_for(contract, dtype, list(names))
    formats = list(dict.fromkeys(one for several in by_parameter.values() for one in several))
    if not formats:
        return ""
    listed = f"scale format {' or '.join(formats)}"
    return f". {dtype} goes with {listed}: say which, as in format={formats[0]!r} (--format {formats[0]})"
