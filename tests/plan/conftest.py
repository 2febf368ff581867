"""A registry over what is installed, sources that tests say, and plans written into files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from portakernel.plan.pins import SourceOf
from portakernel.registry.kernel import Kernel
from portakernel.registry.registry import Registry


@pytest.fixture(scope="session")
def registry() -> Registry:
    return Registry()


@pytest.fixture
def changed() -> dict[str, str]:
    """Kernels whose source is another one than when a plan was written."""
    return {}


@pytest.fixture
def source_of(changed: Mapping[str, str]) -> SourceOf:
    """A source for each kernel, by its name."""

    def source(kernel: Kernel) -> str:
        return hashlib.sha256((kernel.name + changed.get(kernel.name, "")).encode()).hexdigest()[:16]

    return source


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes a file of this name; text or bytes."""

    def to_file(content: str | bytes, name: str = "plan.yaml") -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return to_file
