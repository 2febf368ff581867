"""``TensorDescriptor`` arguments of a launch: the 128-byte map that TMA reads is made once for a tensor, and kept.

Whoever launches gives the descriptors. Triton 3.6 has a launch encode each descriptor anew, which takes as long as the
launch itself. What a map holds is where a tensor lies and the block that a kernel copies: of one compiled kernel's
argument it is kept by address, sizes and strides. Kernels for archs without TMA take the same facts one by one.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

# Maps kept of one argument of a compiled kernel, at some 700 bytes: activations come back to few addresses, weights
# have one in each layer.
_MOST_MAPS = 1024

Encoder = Callable[[int, tuple[int, ...], tuple[int, ...], str], Sequence[Any]]


class _Thread(threading.local):
    """What is known of a thread: whether it has a CUDA context for sure."""

    entered = False


THREAD = _Thread()


def enter_context() -> None:
    """Gives this thread the device's context, which a map is made in: a new thread has none before its first launch."""
    torch.cuda.current_stream().record_event()
    THREAD.entered = True


def is_descriptor(kind: type) -> bool:
    """Whether it is Triton's or Gluon's ``TensorDescriptor``."""
    return is_dataclass(kind) and {"base", "strides", "block_shape"} <= {field.name for field in fields(kind)}


def tensor_of(argument: Any) -> Any:
    """The tensor that an argument is, or describes."""
    return argument if isinstance(argument, Tensor) else getattr(argument, "base", argument)


def facts(name: str, kind: type) -> list[str]:
    """What Triton specialises for in the descriptor called ``name``, as source."""
    laid = [f"{name}.layout"] if "layout" in {field.name for field in fields(kind)} else []
    return [f"{name}.base.dtype", f"tuple({name}.block_shape)", *laid]


def encoded(name: str, encoder: str) -> str:
    """What a launcher is passed for the descriptor called ``name``, as source."""
    return f"*{encoder}({name}.base.data_ptr(), tuple({name}.shape), tuple({name}.strides), {name}.padding)"


def unwrapped(launch: Any) -> tuple[Any, tuple[Encoder, ...]]:
    """Triton 3.6's launcher below the function that encodes descriptors, and the encoder of each descriptor."""
    if not inspect.isfunction(launch):
        return launch, ()
    inside = inspect.getclosurevars(launch).nonlocals
    if not {"launcher", "tensordesc_meta"} <= inside.keys():
        return launch, ()
    encode = sys.modules[launch.__module__].make_tensordesc_arg
    return inside["launcher"], tuple(_encoder(encode, meta) for meta in inside["tensordesc_meta"])


def _encoder(encode: Callable[..., Sequence[Any]], meta: Any) -> Encoder:
    @lru_cache(maxsize=_MOST_MAPS)
    def arguments(address: int, shape: tuple[int, ...], strides: tuple[int, ...], padding: str) -> Sequence[Any]:
        return tuple(encode(_Described(_Address(address), shape, strides, padding), meta))

    return arguments


class _Address(int):
    """An address that stands for the tensor there: launchers take it as a pointer."""

    def data_ptr(self) -> int:
        return int(self)


class _Described:
    """What of a ``TensorDescriptor`` is encoded."""

    def __init__(self, base: _Address, shape: tuple[int, ...], strides: tuple[int, ...], padding: str) -> None:
        self.base, self.shape, self.strides, self.padding = base, shape, strides, padding
