"""Which compiler serves a target here."""

from __future__ import annotations

from typing import Any

from portakernel.capability import Rejection
from portakernel.native.options import Options
from portakernel.target import Target


def compiler_for(target: Target, options: Options = Options(), form: str = "code object") -> Any | Rejection:  # noqa: B008
    """The compiler that would be used, with ``name``, ``version`` and ``path``; or why there is none.

    A plugin's ``ready`` asks it: ``isinstance(found, Rejection)``.
    """
    raise NotImplementedError
