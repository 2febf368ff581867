"""Arrays of NumPy, also of the small floating-point dtypes that ml_dtypes gives it."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from portakernel.calling.arrays.libraries import PAIRS, byte_type
from portakernel.calling.arrays.streams import Queue, Streams, taken_over
from portakernel.words.dtypes import DTYPES

# What NumPy has of its own; the rest ml_dtypes adds.
_OWN = frozenset(("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"))


class NumPyArrays:
    """As ``Library``. Subclasses are refused: what they add to an array, a mask above all, a kernel would not see."""

    name, maker = "NumPy", "numpy.asarray"

    def owns(self, argument: object) -> bool:
        """As ``Library``."""
        numpy = sys.modules.get("numpy")
        return numpy is not None and isinstance(argument, numpy.ndarray)

    def refusal(self, array: Any, name: str) -> str:
        """As ``Library``."""
        numpy = sys.modules["numpy"]
        if isinstance(array, numpy.ma.MaskedArray):
            return f"is a masked array, whose mask a kernel would not see; fill it first: {name}.filled(0)"
        if type(array) not in (numpy.ndarray, numpy.memmap):
            text = (
                f"is of {type(array).__qualname__}, a subclass of numpy.ndarray whose own ways a kernel cannot follow"
            )
            return f"{text}; {name}.view(numpy.ndarray) is the plain array"
        return layout_refusal(array, name, "numpy")

    def dtype(self, array: Any) -> str:
        """As ``Library``."""
        return dtype_name(array.dtype)

    def fixed(self, array: Any, name: str) -> str:
        """As ``Library``."""
        if array.flags.writeable:
            return ""
        return f"is read-only (flags.writeable is False); give an array that may be written: {name}.copy()"

    def address(self, array: Any) -> int:
        """As ``Library``."""
        return int(array.__array_interface__["data"][0])

    def queue(self, device: torch.device, streams: Streams) -> Queue:
        """As ``Library``."""
        return Queue(device)

    def taken(self, array: Any, queue: Queue) -> Tensor:
        """As ``Library``."""
        return taken_as_bytes(array, queue)

    def given_back(self, tensor: Tensor) -> Any:
        """As ``Library``."""
        name = str(tensor.dtype).removeprefix("torch.")
        if name in _OWN:
            return tensor.numpy()
        carried = tensor.view(byte_type(tensor.dtype.itemsize)).numpy()
        return carried if name == PAIRS else carried.view(ml_dtype(name))

    def missing(self, dtypes: Iterable[str]) -> Mapping[str, str]:
        """As ``Library``."""
        return small_floats_missing(dtypes)

    def holds(self, queue: Queue) -> bool:
        """As ``Library``: the caller's own thread has waited for the kernel."""
        return False


@functools.lru_cache(maxsize=64)
def dtype_name(dtype: Any) -> str:
    """The name of NumPy's dtype, which NumPy puts together each time."""
    return str(dtype.name)


def layout_refusal(array: Any, name: str, module: str) -> str:
    """Why an array of NumPy's make has no counterpart among tensors; empty where it has one."""
    if not array.dtype.isnative:
        native = f"{name}.astype({name}.dtype.newbyteorder('='))"
        return f"is of the other byte order ({array.dtype.str!r}); {native} makes one of this machine's"
    if any(stride < 0 for stride in array.strides):
        return f"has a negative stride, which tensors have not; {module}.ascontiguousarray({name}) is a copy without"
    itemsize = array.dtype.itemsize
    if itemsize and any(stride % itemsize for stride in array.strides):
        text = "has strides that are no multiples of its elements' size, as a field of a structured array has"
        return f"{text}; {module}.ascontiguousarray({name}) is a copy without"
    return ""


def taken_as_bytes(array: Any, queue: Queue) -> Tensor:
    """The tensor on an array's memory; what ml_dtypes adds to NumPy goes over as whole numbers."""
    name = dtype_name(array.dtype)
    if name in _OWN or name not in DTYPES:
        return taken_over(array, queue)
    carried = taken_over(array.view(f"u{array.dtype.itemsize}"), queue)
    return carried.view(getattr(torch, name))


def ml_dtype(name: str) -> Any:
    """The dtype that ml_dtypes adds to NumPy under this name."""
    return getattr(importlib.import_module("ml_dtypes"), name)


def find_ml_dtypes() -> bool:
    """Whether ml_dtypes is installed."""
    return "ml_dtypes" in sys.modules or importlib.util.find_spec("ml_dtypes") is not None


def small_floats_missing(dtypes: Iterable[str]) -> Mapping[str, str]:
    """Those that NumPy has not without ml_dtypes, where that is not installed."""
    wanted = [name for name in dtypes if name not in _OWN and name != PAIRS]
    if not wanted or find_ml_dtypes():
        return {}
    return dict.fromkeys(wanted, "NumPy has it through the package ml_dtypes: pip install ml_dtypes")
