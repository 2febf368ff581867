"""Plugin ``inductor``: every op's reference, compiled by PyTorch's Inductor in ``portakernel.warmup``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from portakernel.authoring import hookimpl


@hookimpl
def portakernel_kernels() -> Sequence[Mapping[str, Any]]:
    """One kernel for each op, as its contract says; no list to keep."""
    from portakernel_plugins.inductor.claims import entries

    return entries()
