"""How a built library is called: one launch on torch's current stream, and where its tensors have to lie."""

# pyright: reportPrivateUsage=false
# The current stream's handle has a public name, which takes 3 µs more (torch 2.11).

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from portakernel.authoring import CannotRun, ReasonCode, Rejection
from portakernel_plugins.cutlass.calls import Call

# Vector loads, and the tensor memory accelerator, move as many bytes at a time.
ALIGNMENT = 16

# cutlass::Status::kErrorMisalignedOperand
_MISALIGNED = 1


def launch(library: Any, call: Call, device: torch.device, workspace_bytes: int) -> None:
    """Launches ``call`` on the current stream of ``device``, which is the current device.

    Raises:
        CannotRun: CUTLASS cannot serve it; nothing was launched.
        RuntimeError: the launch failed.
    """
    workspace = None
    if workspace_bytes:
        # torch's allocator orders its next use after this launch, on the same stream
        workspace = torch.empty(workspace_bytes, dtype=torch.uint8, device=device).data_ptr()
    status = library.portakernel_launch(call, workspace, _stream(device.index or 0))
    if status:
        raise failure(library, status, call)


def failure(library: Any, status: int, call: Call) -> Exception:
    """What to raise for a status that is not success: ``CannotRun`` where nothing was launched."""
    said = library.portakernel_status_text(status).decode()
    sizes = f"M={call.m}, N={call.n}, K={call.k}"
    if status < 0:
        code = ReasonCode.ALIGNMENT if -status == _MISALIGNED else ReasonCode.CANNOT_RUN
        return CannotRun(Rejection(code, f"CUTLASS cannot serve {sizes}: {said}"))
    return RuntimeError(f"CUTLASS product with {sizes} failed: {said}; `compute-sanitizer` tells more")


def room(x: Tensor, columns: int, dtype: torch.dtype, out: Tensor | None) -> Tensor:
    """Memory for a result of ``x``'s rows and ``columns``: ``out`` where the kernel can write there, else new."""
    if out is not None and out.is_contiguous() and out.data_ptr() % ALIGNMENT == 0:
        return out
    return torch.empty((*x.shape[:-1], columns), dtype=dtype, device=x.device)


def rows(x: Tensor, width: int) -> tuple[Tensor, int]:
    """``x`` (..., width) in rows that 16-byte loads can read, itself or a copy; and the stride from row to row."""
    if x.is_contiguous() and x.data_ptr() % ALIGNMENT == 0:  # most calls end here: what follows takes microseconds
        return x, width
    matrix = x.reshape(-1, width)
    if not _has_rows(matrix):
        matrix = matrix.clone(memory_format=torch.contiguous_format)
    # of a single row as if more followed: a descriptor wants a stride that is valid in any case
    return matrix, matrix.stride(0) if matrix.shape[0] > 1 else width


def _has_rows(matrix: Tensor) -> bool:
    """Whether a matrix's rows lie apart, without gaps inside, each at an address that 16 divides."""
    if (matrix.stride(1) != 1 and matrix.shape[1] > 1) or matrix.data_ptr() % ALIGNMENT:
        return False
    stride = matrix.stride(0)
    return matrix.shape[0] <= 1 or (stride >= matrix.shape[1] and stride * matrix.element_size() % ALIGNMENT == 0)


def vector(x: Tensor) -> Tensor:
    """``x`` without gaps at an address that 16 divides: itself, or a copy."""
    fits = x.is_contiguous() and x.data_ptr() % ALIGNMENT == 0
    return x if fits else x.clone(memory_format=torch.contiguous_format)


def _public_stream(index: int) -> int:
    handle: int = torch.cuda.current_stream(index).cuda_stream
    return handle


# A build of torch for CPUs has no such function, and no device to launch on.
_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", _public_stream)
