"""A copy of a plugin's package, from which its modules are imported: what is wrong in it is wrong nowhere else."""

from __future__ import annotations

import importlib.util
import os
import py_compile
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

# Where compilers of kernels keep what they made: each copy has its own, so that nobody else runs what it compiles.
_CACHES: Mapping[str, str] = {
    "PORTAKERNEL_CACHE_DIR": "portakernel",
    "XDG_CACHE_HOME": "others",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "CUPY_CACHE_DIR": "cupy",
    "TMPDIR": "temporary",
}


@dataclass(frozen=True, slots=True)
class PackageCopy:
    """A copy of the package ``module``, whose folder is ``original``, in ``folder``; one process at a time uses it."""

    module: str
    original: Path
    folder: Path

    @classmethod
    def make(cls, module: str, original: Path, folder: Path) -> PackageCopy:
        """Copies the package; what Python compiled of it goes by the files' content, not by their dates."""
        copied = folder / original.name
        shutil.copytree(original, copied, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        for file in copied.rglob("*.py"):
            with suppress(py_compile.PyCompileError):  # its import will say so
                py_compile.compile(
                    str(file), doraise=True, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH
                )
        return cls(module, original, copied)

    @contextmanager
    def changed(self, file: str, content: bytes) -> Iterator[None]:
        """Inside, a file of the copy has another content."""
        path = self.folder / file
        before = path.read_bytes()
        path.write_bytes(content)
        try:
            yield
        finally:
            path.write_bytes(before)

    def use(self) -> None:
        """From now on this process imports the package's modules from the copy.

        Raises:
            RuntimeError: some of them were imported before.
        """
        loaded = [name for name in sys.modules if name == self.module or name.startswith(f"{self.module}.")]
        if loaded:
            raise RuntimeError(f"{', '.join(sorted(loaded))} cannot be imported from a copy: they are there already")
        sys.dont_write_bytecode = True
        sys.meta_path.insert(0, _Finder(self.module, self.folder))


class _Finder:
    """Finds one package in a folder; the modules in it are found along its path."""

    def __init__(self, module: str, folder: Path) -> None:
        self.module, self.folder = module, folder

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Nothing for other modules."""
        if name != self.module:
            return None
        return importlib.util.spec_from_file_location(
            name, self.folder / "__init__.py", submodule_search_locations=[str(self.folder)]
        )


def own_caches(folder: Path, filled: Path | None = None) -> None:
    """From now on this process keeps what it compiles in ``folder``, which begins with what is in ``filled``."""
    if filled is not None and filled.is_dir():
        shutil.copytree(filled, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(_CACHES["TMPDIR"]))
    for variable, name in _CACHES.items():
        place = folder / name
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.environ[variable] = str(place)
    import tempfile

    tempfile.tempdir = None  # it is looked up anew
