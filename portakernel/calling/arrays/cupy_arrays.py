"""Arrays of CuPy, whose calls run on the stream that is current in CuPy."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from portakernel.calling.arrays.libraries import PAIRS, byte_type
from portakernel.calling.arrays.numpy_arrays import (
    dtype_name,
    layout_refusal,
    ml_dtype,
    small_floats_missing,
    taken_as_bytes,
)
from portakernel.calling.arrays.streams import PER_THREAD, Queue, Streams
from portakernel.errors import ArgumentValueError

_BY_DLPACK = frozenset(("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"))


class CuPyArrays:
    """As ``Library``."""

    name, maker = "CuPy", "cupy.from_dlpack"

    def owns(self, argument: object) -> bool:
        """As ``Library``."""
        cupy = sys.modules.get("cupy")
        return cupy is not None and isinstance(argument, cupy.ndarray)

    def refusal(self, array: Any, name: str) -> str:
        """As ``Library``."""
        cupy = sys.modules["cupy"]
        if type(array) is not cupy.ndarray:
            text = f"is of {type(array).__qualname__}, a subclass of cupy.ndarray whose own ways a kernel cannot follow"
            return f"{text}; {name}.view(cupy.ndarray) is the plain array"
        return layout_refusal(array, name, "cupy")

    def dtype(self, array: Any) -> str:
        """As ``Library``."""
        return dtype_name(array.dtype)

    def fixed(self, array: Any, name: str) -> str:
        """As ``Library``."""
        return ""

    def address(self, array: Any) -> int:
        """As ``Library``."""
        return int(array.data.ptr)

    def queue(self, device: torch.device, streams: Streams) -> Queue:
        """As ``Library``: CuPy's own current stream on the device.

        Raises:
            ArgumentValueError: it is the default stream of each thread, on which torch gives nothing back.
        """
        handle = int(sys.modules["cupy"].cuda.get_current_stream(device.index).ptr)
        if handle == PER_THREAD:
            text = "CuPy works on the per-thread default stream, on which torch cannot hand results back"
            raise ArgumentValueError(f"{text}; call inside `with cupy.cuda.Stream(non_blocking=True):`")
        return Queue(device, handle)

    def taken(self, array: Any, queue: Queue) -> Tensor:
        """As ``Library``."""
        return taken_as_bytes(array, queue)

    def given_back(self, tensor: Tensor) -> Any:
        """As ``Library``."""
        cupy, name = sys.modules["cupy"], str(tensor.dtype).removeprefix("torch.")
        if name in _BY_DLPACK:
            return cupy.from_dlpack(tensor)
        carried = cupy.from_dlpack(tensor.view(byte_type(tensor.dtype.itemsize)))
        return carried if name == PAIRS else carried.view(ml_dtype(name))

    def missing(self, dtypes: Iterable[str]) -> Mapping[str, str]:
        """As ``Library``."""
        return small_floats_missing(dtypes)

    def holds(self, queue: Queue) -> bool:
        """As ``Library``: what CuPy frees on a stream it gives out again on that stream alone."""
        return False
