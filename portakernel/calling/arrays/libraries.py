"""The libraries whose arrays an op accepts. None is imported here: an array's own library is there already."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from portakernel.calling.arrays.streams import Queue, Streams

# What torch calls two numbers of four bits in a byte, and no other library has: there they are bytes.
PAIRS = "float4_e2m1fn_x2"


class Library(Protocol):
    """A library of arrays, and how its arrays become tensors and tensors its arrays.

    ``name`` is the library's; ``maker`` the code that makes an array of hers of any other.
    """

    name: str
    maker: str

    def owns(self, argument: object) -> bool:
        """Whether this is one of her arrays."""
        ...

    def refusal(self, array: Any, name: str) -> str:
        """Why an array cannot be handed over as it is, and what to do; empty where it can."""
        ...

    def dtype(self, array: Any) -> str:
        """The name of an array's dtype."""
        ...

    def fixed(self, array: Any, name: str) -> str:
        """Why an array must not be written, and what to do; empty where it may."""
        ...

    def address(self, array: Any) -> int:
        """Where an array's memory begins."""
        ...

    def queue(self, device: torch.device, streams: Streams) -> Queue:
        """Where a call on her arrays is queued."""
        ...

    def taken(self, array: Any, queue: Queue) -> Tensor:
        """The tensor on an array's memory."""
        ...

    def given_back(self, tensor: Tensor) -> Any:
        """The array on a tensor's memory."""
        ...

    def missing(self, dtypes: Iterable[str]) -> Mapping[str, str]:
        """The dtypes that her arrays cannot have now, each with what to do."""
        ...

    def holds(self, queue: Queue) -> bool:
        """Whether the memory of her arrays has to be kept until a kernel has read it."""
        ...


def described(argument: object) -> str:
    """An argument's kind for a message: its class, as people write it."""
    kind = type(argument)
    if isinstance(argument, Tensor):
        return "torch.Tensor"
    module = kind.__module__.partition(".")[0]
    if module in ("jaxlib", "jax"):
        return "jax.Array"
    return f"{module}.{kind.__qualname__}".removeprefix("builtins.")


def byte_type(itemsize: int) -> torch.dtype:
    """The dtype of whole numbers that carries ``itemsize`` bytes of any other."""
    return torch.uint8 if itemsize == 1 else torch.uint16
