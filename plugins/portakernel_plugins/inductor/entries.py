"""``forward_<op>``, ``backward_<op>`` and ``build_<op>`` for every op, made when first asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from portakernel.authoring import contracts
from portakernel_plugins.inductor.builds import Op

_OPS: dict[str, Op] = {}


def __getattr__(name: str) -> Callable[..., Any]:
    part, _, op = name.partition("_")
    if part not in ("forward", "backward", "build") or op not in contracts():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: Callable[..., Any] = getattr(_OPS.setdefault(op, Op(op)), part)
    return found
