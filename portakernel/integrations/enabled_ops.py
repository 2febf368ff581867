"""Which ops a client's ``enable`` was asked for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from portakernel.errors import ArgumentTypeError, ArgumentValueError, UnknownNameError


def enabled_ops(client: str, ops: Iterable[str] | None, known: frozenset[str], example: str) -> frozenset[str]:
    """The ops that are named; all that are ``known`` where None are.

    Raises:
        ArgumentTypeError, ArgumentValueError, UnknownNameError: names that are none of them, or no names.
    """
    if ops is None:
        return known
    if isinstance(ops, str):
        raise ArgumentTypeError(f"ops is a sequence of names, such as ({ops!r},); a text was given")
    given: Any = ops
    if not isinstance(given, Iterable):
        raise ArgumentTypeError(f"ops is a sequence of names, such as ({example!r},); this is {ops!r}")
    names = tuple(given)
    if not all(isinstance(name, str) for name in names):
        raise ArgumentTypeError(f"ops is a sequence of names, such as ({example!r},); this is {names!r}")
    wanted = frozenset(names)
    for name in sorted(wanted - known):
        raise UnknownNameError(f"op of {client}", name, known, where="enable")
    if not wanted:
        raise ArgumentValueError(f"ops is empty; name some of {', '.join(sorted(known))}, or leave it out")
    return wanted
