"""What a rendering of the metrics needs beside portakernel: said with the extra that brings it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from portakernel.errors import MissingPackageError


@contextmanager
def needing(module: str, distribution: str, extra: str) -> Iterator[None]:
    """Inside, ``module`` is imported.

    Raises:
        MissingPackageError: it is not there; says which extra to install.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != module:
            raise
        text = f"these metrics need {distribution}, which is not installed: pip install 'portakernel[{extra}]'"
        raise MissingPackageError(text, name=error.name) from error
