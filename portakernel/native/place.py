"""Where a launch goes: torch's devices, or a target that is not here, for which it is compiled alone or emulated."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from portakernel.errors import ArgumentValueError
from portakernel.words.target import Target

if TYPE_CHECKING:
    from torch import Tensor

    from portakernel.native.kernel import Kernel
    from portakernel.native.unit import Unit

# Within `compiling`: the target, and what takes a unit, the name of a kernel of it, and the most dynamic shared memory
# that it is launched with, in the place of its launch.
PRETENDED: ContextVar[tuple[Target, Callable[[Unit, str, int], None]] | None] = ContextVar("PRETENDED", default=None)
# Where launches on CPU tensors are emulated: the target, and what takes a kernel, its grid, block, dynamic shared
# memory and arguments in the place of a launch.
EMULATED: ContextVar[tuple[Target, Callable[[Kernel, Sequence[int], Sequence[int], int, Sequence[Any]], None]] | None]
EMULATED = ContextVar("EMULATED", default=None)


def target_of(tensor: Tensor) -> Target:
    """The target that a launch on ``tensor`` is for: of its device, or the one that is compiled for or emulated.

    Raises:
        ArgumentValueError: the tensor is on no GPU.
    """
    if tensor.is_meta and (pretended := PRETENDED.get()) is not None:
        return pretended[0]
    if tensor.device.type == "cpu" and (emulated := EMULATED.get()) is not None:
        return emulated[0]
    if tensor.device.type != "cuda":
        raise ArgumentValueError(
            f"kernels in CUDA and HIP C++ take tensors on GPUs (torch device cuda); this one is on {tensor.device}"
        )
    return device_target(tensor.get_device())


@functools.cache
def device_target(index: int) -> Target:
    """The target of torch's device ``cuda:index``, whose context exists."""
    import torch

    from portakernel.calling.devices import find_device
    from portakernel.runtime import dispatcher

    return find_device(dispatcher().registry, torch.device("cuda", index)).target


def current_device() -> int:
    """The index of torch's current device."""
    import torch

    return torch.cuda.current_device()
