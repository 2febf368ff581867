"""Code objects kept on disk."""

from __future__ import annotations

from typing import Any


class Cache:
    """A folder of code objects, shared by processes, bounded in size."""


def cache() -> Any:
    """This process's cache."""
    raise NotImplementedError
