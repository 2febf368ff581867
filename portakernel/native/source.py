"""Source files: a plugin's own, of which every byte counts, and other packages' headers, of which the version does."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from portakernel.claims.capability import CannotRun, ReasonCode, Rejection
from portakernel.errors import ArgumentValueError

Language = Literal["cuda", "hip"]
_LANGUAGES: dict[str, Language] = {".cu": "cuda", ".hip": "hip"}


@dataclass(frozen=True, slots=True)
class Source:
    """A file of ``folder`` (``.cu``: CUDA C++, ``.hip``: HIP C++), and the headers that it may include.

    ``headers`` are relative to ``folder``: ``vectors.h``, ``on_nvidia/hip/hip_runtime.h``.
    """

    folder: Path
    file: str
    headers: tuple[str, ...] = ()

    @classmethod
    def beside(cls, module_file: str, file: str, headers: tuple[str, ...] = ()) -> Source:
        """The source ``file`` in the folder of a module, which passes its ``__file__``."""
        return cls(Path(module_file).parent, file, headers)

    @property
    def path(self) -> Path:
        """The file itself."""
        return self.folder / self.file

    @property
    def language(self) -> Language:
        """What it is written in, by its suffix.

        Raises:
            CannotRun: the suffix is of neither language.
        """
        language = _LANGUAGES.get(self.path.suffix)
        if language is None:
            text = f"{self.path} is in no language that is compiled here: name it .cu (CUDA C++) or .hip (HIP C++)"
            raise CannotRun(Rejection(ReasonCode.CANNOT_RUN, text))
        return language

    def read(self) -> dict[str, bytes]:
        """The file and its headers by their names relative to ``folder``, as they are now.

        Raises:
            CannotRun: one is not there or cannot be read.
            ArgumentValueError: one is named outside the folder.
        """
        found: dict[str, bytes] = {}
        for name in (self.file, *self.headers):
            if Path(name).is_absolute() or ".." in Path(name).parts:
                raise ArgumentValueError(
                    f"{name!r} is not below {self.folder}: a source's files are named relative to it"
                )
            try:
                found[name] = (self.folder / name).read_bytes()
            except OSError as error:
                text = (
                    f"{self.folder / name} cannot be read ({error.strerror}): the package that ships it is incomplete"
                )
                raise CannotRun(Rejection(ReasonCode.MISSING_LIBRARY, f"{text}; reinstall it", name)) from error
        return found


@dataclass(frozen=True, slots=True)
class HeaderPackage:
    """Headers that another distribution installed; in the cache's key they count by name and version."""

    name: str
    version: str
    folder: Path

    @classmethod
    def installed(cls, distribution: str, header: str) -> HeaderPackage:
        """The folder of an installed distribution under which ``header`` (``cutlass/cutlass.h``) is found.

        Raises:
            CannotRun: the distribution is not installed, or lists no such file.
        """
        remedy = f"pip install {distribution}"
        try:
            found = importlib.metadata.distribution(distribution)
        except importlib.metadata.PackageNotFoundError as error:
            text = f"needs the headers of {distribution}, which is not installed; {remedy}"
            raise CannotRun(Rejection(ReasonCode.MISSING_LIBRARY, text, distribution)) from error
        for file in found.files or ():
            if file.as_posix().endswith(f"/{header}") and (path := Path(str(found.locate_file(file)))).is_file():
                return cls(distribution, found.version, path.parents[header.count("/")].resolve())
        text = (
            f"needs {header} of {distribution}; {found.version} is installed and has no such file; {remedy} --upgrade"
        )
        raise CannotRun(Rejection(ReasonCode.MISSING_LIBRARY, text, header))
