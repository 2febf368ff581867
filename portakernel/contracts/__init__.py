"""The ops, one module each; the module's name is the op's."""

from __future__ import annotations

import errno
import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from portakernel.contract import Contract
from portakernel.errors import UnknownNameError


@cache
def contracts() -> Mapping[str, Contract]:
    """Every op's contract, by name.

    Raises:
        OSError: they cannot be listed at this moment.
    """
    modules = sorted(module.name for module in pkgutil.iter_modules(__path__))
    if not modules:  # it takes a folder that cannot be listed, for want of descriptors, for empty
        raise OSError(errno.EMFILE, "the ops cannot be listed", next(iter(__path__)))
    return MappingProxyType({name: importlib.import_module(f"{__name__}.{name}").CONTRACT for name in modules})


def contract(op: str) -> Contract:
    """The contract of ``op``.

    Raises:
        UnknownNameError: there is no such op; offers the nearest.
    """
    if op not in contracts():
        raise UnknownNameError("op", op, contracts())
    return contracts()[op]
