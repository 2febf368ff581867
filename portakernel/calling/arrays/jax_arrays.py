"""Arrays of JAX, which never change: nothing is written into one."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from portakernel.calling.arrays.libraries import PAIRS
from portakernel.calling.arrays.streams import Queue, Streams, taken_over
from portakernel.words.dtypes import DTYPES

_X64 = "JAX would make 32 bits of it without a word: jax.config.update('jax_enable_x64', True)"


class JaxArrays:
    """As ``Library``. JAX shows none of its streams: a call runs on torch's, which is made to wait for the arrays."""

    name, maker = "JAX", "jax.numpy.asarray"

    def owns(self, argument: object) -> bool:
        """As ``Library``; also what stands for an array while JAX traces."""
        jax = sys.modules.get("jax")
        return jax is not None and isinstance(argument, jax.Array)

    def refusal(self, array: Any, name: str) -> str:
        """As ``Library``."""
        devices = array.sharding.device_set
        if len(devices) > 1:
            text = f"is sharded over {len(devices)} devices, and a call runs on one"
            return f"{text}; call on each part: [part.data for part in {name}.addressable_shards]"
        if array.is_deleted():
            return "is deleted, as what jax.jit was given to donate; keep it, or compute it anew"
        return ""

    def dtype(self, array: Any) -> str:
        """As ``Library``."""
        return str(array.dtype)

    def fixed(self, array: Any, name: str) -> str:
        """As ``Library``."""
        text = "is a JAX array, which never changes: others may hold its memory"
        return f"{text}; torch.from_dlpack({name}).clone() is a tensor that may be written"

    def address(self, array: Any) -> int:
        """As ``Library``."""
        return int(array.unsafe_buffer_pointer())

    def queue(self, device: torch.device, streams: Streams) -> Queue:
        """As ``Library``."""
        return streams.current(device)

    def taken(self, array: Any, queue: Queue) -> Tensor:
        """As ``Library``."""
        return taken_over(array, queue)

    def given_back(self, tensor: Tensor) -> Any:
        """As ``Library``."""
        name = str(tensor.dtype).removeprefix("torch.")
        from_dlpack = sys.modules["jax"].dlpack.from_dlpack
        # JAX reads rows in order alone
        return from_dlpack((tensor.view(torch.uint8) if name == PAIRS else tensor).contiguous())

    def missing(self, dtypes: Iterable[str]) -> Mapping[str, str]:
        """As ``Library``: those of 64 bits, unless JAX is told to have them."""
        if sys.modules["jax"].config.jax_enable_x64:
            return {}
        return {name: _X64 for name in dtypes if DTYPES[name].bits == 64}

    def holds(self, queue: Queue) -> bool:
        """As ``Library``: JAX gives freed memory out again on streams that know nothing of torch's."""
        return queue.handle is not None


def is_traced(argument: object) -> bool:
    """Whether this stands for an array of JAX that one of its transformations will supply, and has no memory."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(argument, jax.core.Tracer)
