"""What a compiler sees: a folder with the source, its headers and nothing else; and what it says, put back in place."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from portakernel.claims.capability import CannotRun, ReasonCode, Rejection
from portakernel.host.private_folder import in_use, remove_abandoned
from portakernel.native.code_object import Form
from portakernel.native.options import Options
from portakernel.native.source import Source
from portakernel.native.symbols import instances
from portakernel.words.target import Target

_PREFIX = "portakernel-native-"


@dataclass(frozen=True, slots=True)
class Task:
    """One compilation: the staged source in ``folder / "source"``, its products to go to ``folder / "made"``."""

    folder: Path
    source: Source
    target: Target
    options: Options
    names: tuple[str, ...]
    form: Form

    @property
    def main(self) -> Path:
        """The staged file."""
        return self.sources / self.source.file

    @property
    def sources(self) -> Path:
        """The folder with the staged source and headers."""
        return self.folder / "source"

    @property
    def made(self) -> Path:
        """The folder for what the compiler makes; ``code`` in it is the machine code."""
        return self.folder / "made"

    @property
    def includes(self) -> tuple[Path, ...]:
        """The folders that are searched for headers, in order."""
        own = [self.sources / name for name in self.options.include]
        return (*own, self.sources, *(package.folder for package in self.options.packages))

    def defines(self) -> list[str]:
        """The definitions as compilers take them."""
        return [f"-D{name}={value}" for name, value in self.options.defines]

    def put_back(self, told: str) -> str:
        """What a compiler said, with the places of the plugin's files instead of the staged ones."""
        return told.replace(f"{self.sources}{os.sep}", f"{self.source.folder}{os.sep}")


@contextmanager
def staged(
    source: Source,
    files: Mapping[str, bytes],
    target: Target,
    options: Options,
    names: tuple[str, ...],
    form: Form,
    *,
    instantiate: bool,
) -> Iterator[Task]:
    """A task over these files, in a temporary folder that goes with all that is in it.

    Those that killed processes left behind go too.

    ``instantiate``: the source is to use the templates' instances among ``names``, as the compiler takes no names.

    Raises:
        CannotRun: the temporary folder cannot be written.
    """
    ending = instances(names).encode() if instantiate else b""
    try:
        remove_abandoned(Path(tempfile.gettempdir()), _PREFIX)
        with (
            tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as folder,
            in_use(Path(folder)),
        ):
            task = Task(Path(folder).resolve(), source, target, options, names, form)
            task.made.mkdir()
            for name, content in files.items():
                place = task.sources / name
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(content + (ending if name == source.file else b""))
            yield task
    except OSError as error:
        text = f"{source.file} cannot be compiled: {error.filename or tempfile.gettempdir()}: {error.strerror or error}"
        remedy = "make room there, or set TMPDIR to a folder that can be written"
        raise CannotRun(Rejection(ReasonCode.CANNOT_RUN, f"{text}; {remedy}")) from error
