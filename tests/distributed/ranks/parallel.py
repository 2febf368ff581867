"""Everything that two ranks are asked."""

from __future__ import annotations

from typing import Any

import model
import modes
import splits
from torch.distributed.tensor import DeviceMesh


def records(mesh: DeviceMesh) -> dict[str, Any]:
    """The splits, the modes, and tensor parallel layers."""
    return {
        "splits": splits.records(mesh),
        "modes": modes.records(mesh),
        "tensor parallel": model.tensor_parallel_differences(mesh),
    }
