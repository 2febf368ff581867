"""Lets ``torch.ops.portakernel`` know its ops from the moment on at which both torch and portakernel are imported.

Without torch nothing can be registered, and registering takes most of a second: so it waits for the first op that is
looked up there, by a saved program that ``torch.export.load`` reads, say.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def offer_ops() -> None:
    """Makes the first look-up in ``torch.ops.portakernel`` register every op, if torch is imported, or once it is."""
    if "torch" not in sys.modules:
        sys.meta_path.insert(0, _OnceImported())
    elif hasattr(sys.modules["torch"], "ops"):  # else torch is being imported, and imports portakernel
        _offer()


def _offer() -> None:
    from portakernel.tensors.torch_internals import when_missed

    when_missed("portakernel", _register)


def _register() -> bool:
    from portakernel.runtime import register

    return register()


class _OnceImported(MetaPathFinder):
    """Finds torch as the other finders do, and offers the ops when it has been imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The other finders' answer for torch; for all else none."""
        if fullname != "torch":
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        found = (finder.find_spec(fullname, path, target) for finder in others)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None:
            self._follow(spec.loader)
        return spec

    def _follow(self, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                _offer()

        loader.exec_module = exec_module
