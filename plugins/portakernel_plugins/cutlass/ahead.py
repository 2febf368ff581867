"""Building libraries ahead of calls: in ``portakernel.warmup``, and by ``portakernel build cutlass``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from portakernel.authoring import CannotRun, Rejection, Request, Target, warmup_call
from portakernel.authoring.native import Unit
from portakernel_plugins.cutlass.libraries import (
    ELEMENTS,
    FAST,
    PROMOTED,
    Macros,
    Recipe,
    element_macros,
    is_built,
    needs_build,
    operand_macros,
    output_macros,
    recipes,
)


def _element(request: Request) -> Sequence[Macros]:
    return [element_macros(dtype) for dtype in _known(request.dtypes.get("x"))]


def _output(request: Request, *before: Macros, after: Macros = ()) -> Sequence[Macros]:
    return [(*sum(before, ()), *output_macros(dtype), *after) for dtype in _known(request.dtypes.get("out_dtype"))]


def _known(dtype: str | None) -> Sequence[str]:
    """The dtype, or all where a question leaves it open."""
    return tuple(ELEMENTS) if dtype is None else (dtype,)


# By the table's kernels, the macros that a request's dtypes define: several where it leaves them open.
_MACROS: Mapping[str, Callable[[Request], Sequence[Macros]]] = MappingProxyType(
    {
        "linear_act": _element,
        "linear_act_ampere": _element,
        "scaled_mm": lambda request: _output(request, after=PROMOTED),
        "scaled_mm_fast": lambda request: _output(request, after=FAST),
        "scaled_mm_blocks": _output,
        "scaled_mm_mxfp8": lambda request: _output(request, operand_macros("mxfp8")),
        "scaled_mm_nvfp4": lambda request: _output(request, operand_macros("nvfp4")),
    }
)


@dataclass(frozen=True, slots=True)
class Ahead:
    """What has to be built before ``kernel`` can serve: its libraries for a call's dtypes, which serve all sizes."""

    kernel: str

    def build(self, request: Request, tensors: Sequence[Any], values: Sequence[Any]) -> None:
        """Builds what the cache lacks of them, side by side.

        Raises:
            CannotRun: one cannot be built, with the reason; the others are, and kept.
        """
        del tensors, values
        wanted = [recipe for choice in self._choices(request) for recipe in choice]
        todo = [recipe for recipe in wanted if not is_built(recipe, request.target)]
        with ThreadPoolExecutor(max_workers=max(1, min(len(todo), _cores()))) as pool:
            waiting = [pool.submit(recipe.unit().build, request.target) for recipe in todo]
        for built in waiting:
            built.result()

    def built(self, request: Request) -> Rejection | None:
        """Why it is not: the libraries that the cache lacks, and the command that builds them."""
        missing: list[Recipe] = []
        try:
            for choice in self._choices(request):
                lacking = [recipe for recipe in choice if not is_built(recipe, request.target)]
                if not lacking:
                    return None
                missing += lacking
        except CannotRun as declared:
            return declared.rejection
        return needs_build(request.target, missing, warmup_call(request))

    def _choices(self, request: Request) -> Sequence[tuple[Recipe, ...]]:
        """The libraries for a request's dtypes: one choice, or one for each that it leaves open."""
        name = self._in_table(request)
        return [recipes(name, request.target.arch, macros) for macros in _MACROS[name](request)]

    def _in_table(self, request: Request) -> str:
        """The table's name for what serves such calls."""
        if self.kernel == "scaled_mm" and request.values.get("use_fast_accum"):
            return "scaled_mm_fast"
        return f"scaled_mm_{request.formats.get('a', 'mxfp8')}" if self.kernel == "scaled_mm_mx" else self.kernel


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_LINEAR_ACT, _LINEAR_ACT_AMPERE = Ahead("linear_act"), Ahead("linear_act_ampere")
_SCALED_MM, _SCALED_MM_BLOCKS, _SCALED_MM_MX = Ahead("scaled_mm"), Ahead("scaled_mm_blocks"), Ahead("scaled_mm_mx")

# What the manifest names.
build_linear_act, built_linear_act = _LINEAR_ACT.build, _LINEAR_ACT.built
build_linear_act_ampere, built_linear_act_ampere = _LINEAR_ACT_AMPERE.build, _LINEAR_ACT_AMPERE.built
build_scaled_mm, built_scaled_mm = _SCALED_MM.build, _SCALED_MM.built
build_scaled_mm_blocks, built_scaled_mm_blocks = _SCALED_MM_BLOCKS.build, _SCALED_MM_BLOCKS.built
build_scaled_mm_mx, built_scaled_mm_mx = _SCALED_MM_MX.build, _SCALED_MM_MX.built


def units(target: Target) -> list[Unit]:
    """Every library for ``target``; none where the table has no entry for it."""
    if target.vendor != "nvidia":
        return []
    any_call = Request("", target)
    found = [(kernel, macros) for kernel, of in _MACROS.items() for macros in of(any_call)]
    return [recipe.unit() for kernel, macros in found for recipe in recipes(kernel, target.arch, macros)]
