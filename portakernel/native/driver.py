"""CuPy's way to the driver: what loads code on a device and launches its kernels."""

# pyright: reportPrivateUsage=false
# The current stream's handle has a public name, which takes 3 µs more (torch 2.11).

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from portakernel.claims.capability import CannotRun, ReasonCode, Rejection

_MOST_SHARED_ATTRIBUTE = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class Driver:
    """CuPy's way to the driver, as far as it is needed; made on first use.

    Raises:
        CannotRun: CuPy is not installed, or does not go with this torch.
    """

    def __init__(self) -> None:
        import torch

        wanted = "cupy-rocm-7-0" if torch.version.hip else "cupy-cuda13x (or 12x, as torch's CUDA)"
        try:
            import cupy  # pyright: ignore[reportMissingImports] - an optional requirement
        except (ImportError, OSError, RuntimeError) as error:
            text = (
                f"compiled kernels are launched through CuPy, which cannot be imported ({error}); pip install {wanted}"
            )
            raise CannotRun(Rejection(ReasonCode.MISSING_LIBRARY, text, "cupy")) from error
        if bool(cupy.cuda.runtime.is_hip) != bool(torch.version.hip):
            text = f"this CuPy is built for {'ROCm' if cupy.cuda.runtime.is_hip else 'CUDA'}, and torch is not"
            raise CannotRun(Rejection(ReasonCode.MISSING_LIBRARY, f"{text}; pip install {wanted}", "cupy"))
        self._cupy = cupy
        self.error: Any = cupy.cuda.driver.CUDADriverError
        self.launch: Callable[..., None] = cupy.cuda.driver.launchKernel
        self.stream: Callable[[int], int] = torch._C._cuda_getCurrentRawStream

    def bind(self, device: int) -> None:
        """Makes the device's primary context, which is torch's, this thread's."""
        self._cupy.cuda.runtime.setDevice(device)

    def load(self, code: bytes) -> Any:
        """The code in the memory of the thread's device; it stays there as long as what is returned does."""
        module = self._cupy.cuda.function.Module()
        module.load(code)
        return module

    def find(self, module: Any, symbol: str) -> int:
        """The handle of a kernel."""
        return int(module.get_function(symbol).ptr)

    def allow_shared(self, handle: int, size: int) -> None:
        """Lets a kernel have that much dynamic shared memory."""
        self._cupy.cuda.driver.funcSetAttribute(handle, _MOST_SHARED_ATTRIBUTE, size)


@functools.cache
def driver() -> Driver:
    """This process's way to the driver.

    Raises:
        CannotRun: CuPy is not installed, or does not go with this torch.
    """
    return Driver()
