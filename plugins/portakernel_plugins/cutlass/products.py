"""A kernel's libraries in this process: picked by device, dtypes and sizes, loaded when first called."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from portakernel.authoring import CannotRun, ReasonCode, Rejection
from portakernel_plugins.cutlass import offline
from portakernel_plugins.cutlass.calls import Call
from portakernel_plugins.cutlass.configurations import RASTERS
from portakernel_plugins.cutlass.launch import launch
from portakernel_plugins.cutlass.libraries import Macros, Recipe, load, recipes

# Sizes of which it is remembered what workspace they need; beyond that they are asked for anew.
_MOST_SIZES = 4096


@dataclass(slots=True)
class _Library:
    """One library of a product on one device; loaded or not yet."""

    recipe: Recipe
    index: int
    multiprocessors: int
    loaded: Any = None
    workspace_bytes: dict[tuple[int, int, int], int] = field(default_factory=dict[tuple[int, int, int], int])

    def workspace(self, call: Call) -> int:
        """How many bytes a call needs beside its operands; asked once for its sizes."""
        sizes = (call.m, call.n, call.k)
        found = self.workspace_bytes.get(sizes)
        if found is None:
            if len(self.workspace_bytes) >= _MOST_SIZES:
                self.workspace_bytes.clear()
            found = self.workspace_bytes[sizes] = self.loaded.portakernel_workspace_bytes(call)
        return found


class Product:
    """The libraries of one kernel of the table; calls go to the one whose bounds they are within."""

    def __init__(self, kernel: str) -> None:
        self.kernel = kernel
        # neither is hashed on a call: a recipe, a configuration
        self._libraries: dict[tuple[torch.device, Macros], tuple[_Library, ...]] = {}

    def __call__(self, call: Call, y: Tensor, macros: Macros) -> None:
        """Launches ``call``, which writes ``y``, with the library for ``macros``; on meta tensors nothing is launched.

        Raises:
            CannotRun: the library is not built, or cannot serve the call; nothing was launched.
            CaptureError: it is not loaded, and a stream is being captured.
        """
        device = y.device
        known = self._libraries.get((device, macros)) or self._of(y, macros)
        library = next(library for library in known if library.recipe.configuration.serves(call.m, call.k))
        if y.is_meta:
            offline.add(library.recipe)
            return
        if library.loaded is None:
            library.loaded = load(library.recipe, offline.target(y))
        configuration = library.recipe.configuration
        call.swizzle, call.raster = configuration.swizzle, RASTERS[configuration.raster]
        call.device, call.multiprocessors = library.index, library.multiprocessors
        launch(library.loaded, call, device, library.workspace(call))

    def _of(self, y: Tensor, macros: Macros) -> tuple[_Library, ...]:
        arch = offline.target(y).arch
        processors = 0 if y.is_meta else torch.cuda.get_device_properties(y.device).multi_processor_count
        here = y.device.index or 0
        found = tuple(_Library(recipe, here, processors) for recipe in recipes(self.kernel, arch, macros))
        if not found:
            text = f"{self.kernel} has no configuration for {arch}; configurations.yaml lists those that it has"
            raise CannotRun(Rejection(ReasonCode.ARCH, text, "target"))
        if not y.is_meta:  # of those the next may be for another target
            self._libraries[y.device, macros] = found
        return found
