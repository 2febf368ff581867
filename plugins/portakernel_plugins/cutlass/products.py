"""A kernel's libraries in this process: picked by device, dtypes and sizes, loaded when first called."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from portakernel.capability import CannotRun, ReasonCode, Rejection
from portakernel_plugins.cutlass import offline
from portakernel_plugins.cutlass.calls import Call
from portakernel_plugins.cutlass.configurations import RASTERS
from portakernel_plugins.cutlass.launch import run
from portakernel_plugins.cutlass.libraries import Macros, Recipe, load, recipes


class Product:
    """The libraries of one kernel of the table; calls go to the one whose bounds they are within."""

    def __init__(self, kernel: str) -> None:
        self.kernel = kernel
        self._recipes: dict[tuple[torch.device, Macros], tuple[Recipe, ...]] = {}
        self._libraries: dict[tuple[torch.device, Recipe], ctypes.CDLL] = {}

    def __call__(self, call: Call, y: Tensor, macros: Macros) -> None:
        """Launches ``call``, which writes ``y``, with the library for ``macros``; on meta tensors nothing is launched.

        Raises:
            CannotRun: the library is not built, or cannot serve the call; nothing was launched.
            CaptureError: it is not loaded, and a stream is being captured.
        """
        recipe = self._recipe(call, y, macros)
        if y.is_meta:
            offline.add(recipe)
            return
        library = self._libraries.get((y.device, recipe))
        if library is None:
            library = self._libraries[y.device, recipe] = load(recipe, offline.target(y))
        configuration = recipe.configuration
        call.swizzle, call.raster = configuration.swizzle, RASTERS.index(configuration.raster)
        run(library, call, y.device)

    def _recipe(self, call: Call, y: Tensor, macros: Macros) -> Recipe:
        known = () if y.is_meta else self._recipes.get((y.device, macros), ())
        if not known:
            arch = offline.target(y).arch
            known = recipes(self.kernel, arch, macros)
            if not known:
                text = f"{self.kernel} has no configuration for {arch}; configurations.yaml lists those that it has"
                raise CannotRun(Rejection(ReasonCode.ARCH, text, "target"))
            if not y.is_meta:
                self._recipes[y.device, macros] = known
        return next(recipe for recipe in known if recipe.configuration.serves(call.m, call.k))
