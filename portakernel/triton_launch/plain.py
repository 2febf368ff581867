"""Triton's own launches, ``kernel[grid](...)``, taken where there is no GPU to launch on: emulated, or compiled alone.

Everything that Triton launches comes through ``JITFunction.run``, be it autotuned or under heuristics. While some
context takes launches, that method asks whether this thread's do; without one it is Triton's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from typing import Any

import triton
from triton.runtime.autotuner import Autotuner

from portakernel.host.locks import make_lock
from portakernel.tensors.diversion import Launch

_TAKING: ContextVar[Launch | None] = ContextVar("portakernel_plain_triton_launches", default=None)
_LOCK = make_lock()
# Their methods are replaced, by functions of other names.
_JITTED: Any = triton.JITFunction
_AUTOTUNER: Any = Autotuner
# What the contexts that are open have replaced: how many there are, and Triton's own methods.
_OPEN: list[tuple[Callable[..., Any], Callable[..., Any]]] = []


@contextmanager
def taking_plain_launches(launch: Launch) -> Iterator[None]:
    """Within this context, this thread's ``kernel[grid](...)`` go to ``launch``, with the grid's numbers.

    An autotuned kernel has the first configuration that its pruning leaves: nothing here has a time.
    """
    token = _TAKING.set(launch)
    with _LOCK:
        _OPEN.append(_replace() if not _OPEN else _OPEN[-1])
    try:
        yield
    finally:
        with _LOCK:
            run, tuned = _OPEN.pop()
            if not _OPEN:
                _JITTED.run, _AUTOTUNER.run = run, tuned
        _TAKING.reset(token)


def _replace() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Puts methods that ask in the place of Triton's, which are the result."""
    run, tuned = _JITTED.run, _AUTOTUNER.run

    def taken(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        launch = _TAKING.get()
        if launch is None or warmup:
            return run(kernel, *args, grid=grid, warmup=warmup, **options)
        launch(kernel, _numbers(kernel, grid, args, options), args, options)
        return None

    def first_configuration(tuner: Any, *args: Any, **options: Any) -> Any:
        if _TAKING.get() is None or len(tuner.configs) < 2:
            return tuned(tuner, *args, **options)
        # a copy, as what is chosen here must not be what a GPU's launches find
        single = copy(tuner)
        single.nargs = dict(zip(tuner.arg_names, args, strict=False))
        single.configs = single.prune_configs(options)[:1]
        return tuned(single, *args, **options)

    _JITTED.run, _AUTOTUNER.run = taken, first_configuration
    return run, tuned


def _numbers(kernel: Any, grid: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> tuple[int, ...]:
    if callable(grid):
        grid = grid(bound(kernel, args, options))
    return tuple(grid)


def bound(kernel: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> dict[str, Any]:
    """By name what each parameter of a launch gets, defaults too; without the options that Triton compiles with."""
    parameters = kernel.signature.parameters
    binding = kernel.signature.bind(*args, **{name: value for name, value in options.items() if name in parameters})
    binding.apply_defaults()
    return dict(binding.arguments)
