"""Functions from source text: where a loop over arguments would cost more than what it decides."""

from __future__ import annotations

from typing import Any


def define(source: str, name: str, origin: str, names: dict[str, Any]) -> Any:
    """The function ``name`` that ``source`` defines, with ``names`` as its globals."""
    scope = dict(names)  # no __name__: torch.compile would take it for a module that can be imported
    exec(compile(source, f"<portakernel: {origin}>", "exec"), scope)
    return scope[name]
