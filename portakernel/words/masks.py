"""Masks by name: which keys a query sees, said by a function; the built-in ones, and those of other packages.

Names are what requests, plans and graphs hold. No torch here: a mask's functions are held, not called.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from keyword import iskeyword
from typing import Any

from portakernel.errors import ArgumentValueError, UnknownNameError
from portakernel.text.spelling import spelled

# What a mask may read beside positions: a number for each query, for each key, for each sequence of the batch.
AUXILIARY: tuple[str, ...] = ("query_ids", "key_ids", "prefix")

# How many queries and keys a block may have, by the word for it.
BLOCKS: Mapping[str, tuple[int, int]] = {"128x128": (128, 128), "64x64": (64, 64)}

Rule = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Mask:
    """``torch(b, h, q, k, *aux)`` is true where a query sees a key; ``aux`` names the arguments that it reads.

    All are integers: ``b`` and ``h`` count batches and query heads, ``q`` and ``k`` are positions of queries and keys.
    They broadcast against each other, and so does what is read of ``aux``. ``triton`` says the same to Triton; None
    where kernels in Triton know the mask by its name, or cannot serve it.
    """

    name: str
    torch: Rule
    triton: Any = None
    aux: tuple[str, ...] = ()


def _all(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q == q  # noqa: PLR0124 - true in the shape of positions, whatever they are made of


def _causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return k <= q


def _document(b: Any, h: Any, q: Any, k: Any, query_id: Any, key_id: Any) -> Any:
    return query_id == key_id


def _prefix(b: Any, h: Any, q: Any, k: Any, prefix: Any) -> Any:
    return (k <= q) | (k < prefix)


BUILT_IN: tuple[Mask, ...] = (
    Mask("none", _all),
    Mask("causal", _causal),
    Mask("document", _document, aux=("query_ids", "key_ids")),
    Mask("prefix", _prefix, aux=("prefix",)),
)

# By name. It grows by ``add``, and is looked at by the code that calls go through.
MASKS: dict[str, Mask] = {mask.name: mask for mask in BUILT_IN}


def _check_functions(name: Any, torch: Any, triton: Any) -> None:
    if not (isinstance(name, str) and name.isidentifier() and not iskeyword(name)):
        raise ArgumentValueError(f"mask {name!r} is no name for one; write a Python name, such as block_diagonal")
    if not callable(torch):
        raise ArgumentValueError(f"mask {name!r}: torch= is {spelled(torch)}; it must be fn(b, h, q, k, *aux) -> bool")
    if triton is not None and not _is_triton(triton):
        raise ArgumentValueError(f"mask {name!r}: triton= is {spelled(triton)}; it must be under @triton.jit, or None")


def add(mask: Mask) -> None:
    """From now on calls may name this mask; the same functions, defined anew, take the place of the earlier ones.

    Raises:
        ArgumentValueError: its name is no word, or another mask's; it reads what there is not.
    """
    _check_functions(mask.name, mask.torch, mask.triton)
    unknown = [name for name in mask.aux if name not in AUXILIARY]
    if unknown or list(mask.aux) != [name for name in AUXILIARY if name in mask.aux]:
        text = f"mask {mask.name!r} reads {', '.join(mask.aux)}; it may read {', '.join(AUXILIARY)}, in this order"
        raise ArgumentValueError(text)
    _check_arguments(mask)
    known = MASKS.get(mask.name)
    if known is not None and known.torch is not mask.torch and not _is_anew(known, mask):
        text = f"mask {mask.name!r} is {_origin(known)} already; choose another name for {_origin(mask)}"
        raise ArgumentValueError(text)
    MASKS[mask.name] = mask


def named(name: str) -> Mask:
    """The mask of this name.

    Raises:
        UnknownNameError: there is none; lists those that there are.
    """
    if name not in MASKS:
        raise UnknownNameError("mask", name, MASKS, hint="Own masks: portakernel.masks.register")
    return MASKS[name]


def found_for(op: str, name: str, given: Mapping[str, Any]) -> Mask:
    """The mask of a call, of whose ``AUXILIARY`` arguments ``given`` holds each: a tensor, or None.

    Raises:
        ArgumentValueError: it reads what is not given, or does not read what is.
    """
    mask = MASKS[name]
    for argument in AUXILIARY:
        if (given[argument] is not None) != (argument in mask.aux):
            reads = f"reads {', '.join(mask.aux)}" if mask.aux else f"reads none of {', '.join(AUXILIARY)}"
            found = "is missing" if argument in mask.aux else "is given"
            raise ArgumentValueError(f"{op}: {argument} {found}; mask={name!r} {reads}")
    return mask


def _check_arguments(mask: Mask) -> None:
    """Both functions take positions, and a number for each name of ``aux``; one without a signature may be anything."""
    for kind, function in (("torch", mask.torch), ("triton", getattr(mask.triton, "fn", None))):
        try:
            signature = inspect.signature(function) if function is not None else None
        except (TypeError, ValueError):
            continue
        wanted = ("b", "h", "q", "k", *mask.aux)
        try:
            if signature is not None:
                signature.bind(*wanted)
        except TypeError as error:
            text = f"mask {mask.name!r}: its {kind} function takes {signature}; it is given ({', '.join(wanted)})"
            raise ArgumentValueError(text) from error


def _is_triton(function: Any) -> bool:
    return callable(function) and type(function).__module__.startswith("triton.")


def _is_anew(known: Mask, mask: Mask) -> bool:
    """Whether a function is one of the same place, defined again: of functions without a name that cannot be told."""
    return _origin(known) == _origin(mask) and "<lambda>" not in _origin(mask)


def _origin(mask: Mask) -> str:
    return f"{getattr(mask.torch, '__module__', '?')}.{getattr(mask.torch, '__qualname__', mask.torch)}"
