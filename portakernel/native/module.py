"""Code objects loaded on a device, and their kernels launched on torch's current stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from portakernel.native.code_object import CodeObject

# What a kernel takes, in C's words: `pointer` is a tensor, None (a null pointer) or an address.
Scalar = Literal["pointer", "int32", "uint32", "int64", "uint64", "float32", "float64"]
# (bytes, alignment) is a structure that is passed by value, given as bytes of that length.
Parameter = Scalar | tuple[int, int]


class Function:
    """One kernel on one device: called, it is launched on torch's current stream there."""

    def __call__(self, grid: Sequence[int], block: Sequence[int], shared_bytes: int, *args: Any) -> None:
        """Launches ``grid`` blocks of ``block`` threads (one to three numbers each).

        ``shared_bytes`` is dynamic shared memory. ``args`` are the kernel's arguments, as its parameters say.
        """
        raise NotImplementedError


class Module:
    """A code object in a device's memory."""

    def function(self, name: str, parameters: Sequence[Parameter], *, most_shared_bytes: int = 0) -> Function:
        """The kernel that was asked for as ``name``; ``most_shared_bytes``: of dynamic shared memory, at any launch.

        Raises:
            CannotRun: the device does not have so much shared memory.
            KeyError: there is no such kernel.
            ValueError: its parameters are not of these sizes.
        """
        raise NotImplementedError


def load(code: CodeObject, device: int | None = None) -> Module:
    """``code`` on a device of torch's (its index; the current one), whose context has to exist.

    Raises:
        CannotRun: it is for another architecture, CuPy is missing, or the driver refuses it.
    """
    raise NotImplementedError
