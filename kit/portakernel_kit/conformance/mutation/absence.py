"""A module taken away for a while, as if it were not installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Absent:
    """Finds nothing of one module, and says so before others are asked."""

    def __init__(self, module: str) -> None:
        self.module = module

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Nothing for other modules."""
        if _within(name, self.module):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


@contextmanager
def absent(module: str, user: str) -> Iterator[None]:
    """Inside, ``module`` cannot be imported, and the package ``user`` has not been; both are as before at the end."""
    before = {name: loaded for name, loaded in sys.modules.items() if _within(name, module) or _within(name, user)}
    finder = _Absent(module)
    sys.meta_path.insert(0, finder)
    try:
        for name in before:
            del sys.modules[name]
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if _within(name, module) or _within(name, user)]:
            del sys.modules[name]
        sys.modules.update(before)


def _within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")
