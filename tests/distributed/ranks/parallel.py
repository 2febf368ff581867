"""Everything that two ranks are asked."""

from __future__ import annotations

from typing import Any

import model
import modes
import splits
import trial
from torch.distributed.tensor import DeviceMesh


def records(mesh: DeviceMesh) -> dict[str, Any]:
    """The splits, the modes, tensor parallel layers, and whether undefined rows are compared."""
    return {
        "splits": splits.records(mesh),
        "modes": modes.records(mesh),
        "undefined rows": trial.unlike_rows_of_no_expert(mesh),
        "tensor parallel": model.tensor_parallel_differences(mesh),
    }
