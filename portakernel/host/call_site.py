"""Where a warning points: the line of whoever called, outside portakernel, torch and what calls on their behalf."""

from __future__ import annotations

import inspect
from types import FrameType

# Packages whose frames stand between a caller's line and a warning: ours, torch's, and what passes calls on.
_BETWEEN = frozenset(
    {
        "portakernel",
        "portakernel_kit",
        "portakernel_plugins",
        "portakernel_backends",
        "torch",
        "triton",
        "pluggy",
        "typer",
        "contextlib",
        "functools",
        "importlib",
        "concurrent",
        "threading",
    }
)


def callers_level() -> int:
    """The stack level, for ``warnings.warn`` in the calling function, of the first line outside; else the outermost."""
    level, frame = 1, inspect.currentframe()
    frame = frame.f_back if frame is not None else None
    while frame is not None and frame.f_back is not None and _is_between(frame):
        frame, level = frame.f_back, level + 1
    return level


def _is_between(frame: FrameType) -> bool:
    name, file = str(frame.f_globals.get("__name__", "")), frame.f_code.co_filename
    # generated code, ours and of traced graphs, has no module; and importing has a frozen one
    generated = file.startswith(("<portakernel", "<eval_with_key", "<frozen ")) or (not name and file.startswith("<"))
    return generated or name.partition(".")[0] in _BETWEEN
