"""The races of ``arrays.py``: calls on arrays that a busy GPU has yet to fill, and the same with a planted fault."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import numpy as np
import torch

from portakernel import ops
from portakernel.calling.arrays.jax_arrays import JaxArrays
from portakernel.calling.arrays.streams import Queue, TorchStreams

# Floats of an array: 4 MB, which are read in a few microseconds; and how long a stream is busy before it is filled:
# milliseconds, several times what the call takes until its kernel is launched.
_COUNT, _BUSY_CYCLES = 1 << 20, 6_000_000
_BUSY = r"""
extern "C" __global__ void busy(long long cycles) {
  long long begin = clock64();
  while (clock64() - begin < cycles) {}
}
"""


def all_of(races: int) -> dict[str, dict[str, Any]]:
    """For each kind of race how many were run, how many results were wrong, and how many with a fault."""
    counted = dict[str, dict[str, Any]]()
    for name, fault, planted, run in _kinds():
        wrong = run(races)
        with planted():
            seen = run(races)
        torch.cuda.synchronize()
        counted[name] = {"races": races, "wrong": wrong, "wrong_with_fault": seen, "fault": fault}
    return counted


def _kinds() -> Iterator[tuple[str, str, Callable[[], AbstractContextManager[Any]], Callable[[int], int]]]:
    with contextlib.suppress(ImportError):
        importlib.import_module("cupy")
        yield "CuPy", "the kernel runs on torch's stream", _on_torchs_stream, cupy_races
        yield "CuPy, out=", "the kernel runs on torch's stream", _on_torchs_stream, cupy_races_into
    with contextlib.suppress(ImportError):
        if importlib.import_module("jax").default_backend() == "gpu":
            yield "JAX", "arrays are asked for on another stream", _asked_for_elsewhere, jax_races
            yield "JAX, argument dropped", "memory is not kept until it was read", _not_kept, jax_races_dropped


def cupy_races(races: int, *, into: bool = False) -> int:
    """Wrong results of calls on two streams of CuPy in turn, each begun while the other's still runs."""
    cupy = importlib.import_module("cupy")
    busy = cupy.RawKernel(_BUSY, "busy")
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    arrays = [cupy.zeros(_COUNT, cupy.float32) for _ in range(2)]
    outs = [cupy.zeros(_COUNT, cupy.float32) for _ in range(2)]
    cupy.cuda.Device().synchronize()
    ops.add(arrays[0], arrays[0])  # the choice, and a kernel's compilation, are no part of a race
    wrong, begun = 0, list[tuple[Any, Any, int]]()
    for number in range(1, races + 1):
        place = number % 2
        with streams[place]:
            busy((1,), (1,), (np.int64(_BUSY_CYCLES),))
            arrays[place].fill(number)
            y = ops.add(arrays[place], arrays[place], **({"out": outs[place]} if into else {}))
        begun.append((y, streams[place], number))
        if len(begun) == 2:
            first, stream, expected = begun.pop(0)
            wrong += _is_wrong(first.get(stream=stream), expected)
    wrong += sum(_is_wrong(y.get(stream=stream), expected) for y, stream, expected in begun)
    return wrong


def cupy_races_into(races: int) -> int:
    """The same with ``out=``."""
    return cupy_races(races, into=True)


def jax_races(races: int) -> int:
    """Wrong results of calls on what JAX has yet to compute, on two streams of torch in turn, read by JAX at once."""
    jax = importlib.import_module("jax")
    slow = _slow_fill(jax)
    streams = [torch.cuda.Stream() for _ in range(2)]
    consume = jax.jit(lambda y: y + 0)
    consume(ops.add(slow(0.0), slow(0.0))).block_until_ready()
    wrong, begun = 0, list[tuple[Any, int]]()
    for number in range(1, races + 1):
        with torch.cuda.stream(streams[number % 2]):
            x = slow(float(number))
            begun.append((consume(ops.add(x, x)), number))
        if len(begun) == 2:
            first, expected = begun.pop(0)
            wrong += _is_wrong(np.asarray(first), expected)
    return wrong + sum(_is_wrong(np.asarray(y), expected) for y, expected in begun)


def jax_races_dropped(races: int) -> int:
    """Wrong results of calls whose kernel begins late, while their argument is dropped and JAX fills other arrays."""
    jax = importlib.import_module("jax")
    fill = jax.jit(lambda number: jax.numpy.full(_COUNT, number, jax.numpy.float32))
    streams = [torch.cuda.Stream() for _ in range(2)]
    ops.add(fill(0.0), fill(0.0)).block_until_ready()
    wrong = 0
    for number in range(1, races + 1):
        x = fill(float(number)).block_until_ready()
        with torch.cuda.stream(streams[number % 2]):
            torch.cuda._sleep(_BUSY_CYCLES)
            y = ops.add(x, x)
        del x
        others = [fill(-1.0) for _ in range(4)]
        wrong += _is_wrong(np.asarray(y), number)
        del others
    return wrong


def _slow_fill(jax: Any) -> Callable[[float], Any]:
    """A function that returns at once, and fills an array only after a while."""

    def fill(number: Any) -> Any:
        steps = jax.lax.fori_loop(0, 300, lambda _, value: jax.numpy.tanh(value @ value), jax.numpy.ones((512, 512)))
        # a tanh is never larger than 1, which the compiler does not know
        return jax.numpy.full(_COUNT, jax.numpy.where(steps[0, 0] > 2.0, 7.0, number), jax.numpy.float32)

    compiled: Callable[[float], Any] = jax.jit(fill)
    return compiled


def _is_wrong(got: np.ndarray[Any, Any], number: int) -> bool:
    return bool((got != np.float32(2 * number)).any())


def _on_torchs_stream() -> AbstractContextManager[Any]:
    return mock.patch.object(TorchStreams, "working_on", return_value=contextlib.nullcontext())


def _asked_for_elsewhere() -> AbstractContextManager[Any]:
    other, taken = torch.cuda.Stream(), JaxArrays.taken

    def elsewhere(self: JaxArrays, array: Any, queue: Queue) -> Any:
        return taken(self, array, Queue(queue.device, other.cuda_stream))

    return mock.patch.object(JaxArrays, "taken", elsewhere)


def _not_kept() -> AbstractContextManager[Any]:
    return mock.patch.object(JaxArrays, "holds", return_value=False)
