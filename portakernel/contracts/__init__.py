"""The ops, one module each; the module's name is the op's. Beside them stand those that other distributions ship."""

from __future__ import annotations

import errno
import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from portakernel.contract import Contract
from portakernel.errors import UnknownNameError


@dataclass(frozen=True, slots=True)
class Shipped:
    """An op of another distribution's: its contract, the module of its reference, the plugin that ships it."""

    contract: Contract
    reference: str
    plugin: str


# By the op's name; what a process has once known it goes on knowing.
_shipped: dict[str, Shipped] = {}


@cache
def own_contracts() -> Mapping[str, Contract]:
    """The contract of every op of portakernel's own, by name.

    Raises:
        OSError: they cannot be listed at this moment.
    """
    modules = sorted(module.name for module in pkgutil.iter_modules(__path__))
    if not modules:  # without file descriptors pkgutil cannot list the folder, and says that it is empty
        raise OSError(errno.EMFILE, "the ops cannot be listed", next(iter(__path__)))
    return MappingProxyType({name: importlib.import_module(f"{__name__}.{name}").CONTRACT for name in modules})


def contracts() -> Mapping[str, Contract]:
    """Every op's contract, by name: portakernel's own, and those that installed plugins ship.

    The latter are known once a dispatcher was made (``registry.shipped_ops``).

    Raises:
        OSError: they cannot be listed at this moment.
    """
    return _all() if _shipped else own_contracts()


@cache
def _all() -> Mapping[str, Contract]:
    others = {op: shipped.contract for op, shipped in sorted(_shipped.items())}
    return MappingProxyType({**own_contracts(), **others})


def ship(contract: Contract, reference: str, plugin: str) -> None:
    """Makes another distribution's op one of those that there are."""
    _shipped[contract.op] = Shipped(contract, reference, plugin)
    _all.cache_clear()


def shipped() -> Mapping[str, Shipped]:
    """The ops of other distributions that are known by now."""
    return MappingProxyType(_shipped)


def reference_module(op: str) -> str:
    """The module that holds the op's formula."""
    return _shipped[op].reference if op in _shipped else f"portakernel.references.{op}"


def contract(op: str) -> Contract:
    """The contract of ``op``.

    Raises:
        UnknownNameError: there is no such op; offers the nearest.
    """
    if op not in contracts():
        raise UnknownNameError("op", op, contracts())
    return contracts()[op]
