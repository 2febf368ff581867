"""What goes with a dtype that an argument cannot have as it was asked for: a scale format, a layout, a view."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from portakernel.contract.parts import Choice, alternatives

if TYPE_CHECKING:
    from portakernel.contract.contract import Contract


# What other libraries keep as bytes.
_KEPT_AS_BYTES = ("float4_e2m1fn_x2", "float8_e8m0fnu")


def values_for(
    contract: Contract, dtype: str, names: Iterable[str], kinds: Sequence[str] = ("format", "text")
) -> dict[str, tuple[str, ...]]:
    """By parameter, the values with which some of ``names`` may be ``dtype``, of an op before choices are made."""
    holders = {parameter.name for parameter in contract.parameters if parameter.kind in kinds}
    found: dict[str, tuple[str, ...]] = {}
    for tensor in contract.tensors:
        dtypes = tensor.dtypes
        if tensor.name not in names or not isinstance(dtypes, Choice) or dtypes.by not in holders:
            continue
        if values := tuple(
            value for value, own in dtypes.of.items() if any(dtype in group for group in alternatives(own))
        ):
            found[dtypes.by] = values
    return found


def for_calls(contract: Contract, dtype: str, name: str) -> str:
    """A clause for who has a tensor: the keyword argument to give."""
    clauses = [f"{by}={' or '.join(map(repr, few))}" for by, few in values_for(contract, dtype, [name]).items()]
    return f". {dtype} goes with {' and '.join(clauses)}" if clauses else ""


def for_bytes(dtype: str, name: str, accepted: Iterable[str]) -> str:
    """A clause for who has bytes where a narrow dtype is accepted that others keep so: how they are called that."""
    meant = [one for one in accepted if one in _KEPT_AS_BYTES] if dtype in ("uint8", "int8") else []
    return f"; such bytes are {name}.view(torch.{meant[0]})" if meant else ""


def in_words(contract: Contract, dtype: str, names: Iterable[str]) -> str:
    """A clause for who asks about a call without tensors: the format to give, in Python and on the command line."""
    by_parameter = values_for(contract, dtype, list(names), ("format",))
    formats = list(dict.fromkeys(one for several in by_parameter.values() for one in several))
    if not formats:
        return ""
    listed = f"scale format {' or '.join(formats)}"
    return f". {dtype} goes with {listed}: say which, as in format={formats[0]!r} (--format {formats[0]})"
