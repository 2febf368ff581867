"""The entries: those of ``triton.attention``, each inside ``interpreting()``.

They are another plugin's, and may change without notice: a plugin with kernels of its own imports portakernel.authoring
alone, and ``portakernel validate`` says so of this one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from portakernel.authoring.triton import interpreting
from portakernel_plugins.triton.attention import backward as on_gpus_backward
from portakernel_plugins.triton.attention import forward as on_gpus


def _interpreted(entry: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(entry)
    def run(*tensors: Any, **values: Any) -> Any:
        with interpreting():
            return entry(*tensors, **values)

    return run


attention = _interpreted(on_gpus.attention)
backward = _interpreted(on_gpus_backward.backward)
