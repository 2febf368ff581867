"""SGLang's modules, imported by name: one that fails is told as that, and not as one that SGLang does not have.

After a failed import Python keeps what was imported on the way, and the next attempt fails elsewhere, by something that
says nothing of the cause: the process's first failure is therefore told with each.
"""

from __future__ import annotations

import importlib
import types

from portakernel.errors import PortakernelError
from portakernel.text.printable import exception_text

_failures: list[str] = []


class SglangImportError(PortakernelError, ImportError):
    """SGLang is installed in a tested version, and importing one of its modules failed; the cause is chained."""


def imported(module: str) -> types.ModuleType:
    """The module of SGLang with this name.

    Raises:
        SglangImportError: SGLang has it, or should, and importing it failed.
        ModuleNotFoundError: SGLang has no such module, as Python itself says it.
    """
    try:
        return importlib.import_module(module)
    except Exception as error:  # whatever a module of SGLang, or of what it imports, raises
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise
        text = exception_text(error)
        _failures.append(f"{module}: {text}")
        before = "" if _failures[0] == _failures[-1] else f" (the first to fail in this process: {_failures[0]})"
        raise SglangImportError(
            f"importing SGLang failed: {module}: {text}{before}; `python -c 'import {module}'` shows where. A package"
            " that SGLang needs is missing, or does not fit the others"
        ) from error
