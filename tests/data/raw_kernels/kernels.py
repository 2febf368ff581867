"""``add`` and ``rms_norm`` over the memory behind ``data_ptr()``."""

from __future__ import annotations

import ctypes
import threading

import numpy as np
import torch

from portakernel.authoring import CannotRun, ReasonCode, Rejection

CALLS: list[str] = []
THREADS: list[int] = []


def memory(tensor: torch.Tensor) -> np.ndarray:
    """The floats at the tensor's address, whatever the tensor says that they mean."""
    count = tensor.numel()
    if count == 0:
        return np.zeros(tensor.shape, np.float32)
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(tensor.data_ptr())).reshape(tensor.shape)


def add(x: torch.Tensor, y: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    CALLS.append("add")
    out = torch.empty(x.shape, dtype=x.dtype) if out is None else out
    memory(out)[...] = memory(x) + memory(y)
    return out


def picky(x: torch.Tensor, y: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    CALLS.append("picky")
    at_fault = "M" if x.numel() < 4096 else None
    raise CannotRun(Rejection(ReasonCode.SHARED_MEMORY, "needs 1 GiB of shared memory; this device has none", at_fault))


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, *, eps: float, out: torch.Tensor | None = None, save: bool = False
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    CALLS.append("rms_norm")
    values = memory(x).astype(np.float64)
    rstd = 1 / np.sqrt((values**2).mean(-1, keepdims=True) + eps)
    out = torch.empty(x.shape, dtype=x.dtype) if out is None else out
    memory(out)[...] = values * rstd * memory(weight)
    return (out, torch.from_numpy(rstd.reshape(-1).astype(np.float32))) if save else out


def rms_norm_backward(
    grad_y: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    rstd: torch.Tensor,
    *,
    eps: float,
    needs: tuple[bool, bool],
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    CALLS.append("rms_norm_backward")
    THREADS.append(threading.get_ident())
    grad_y = grad_y.contiguous()
    g, u = memory(grad_y), memory(x) * memory(rstd).reshape(*x.shape[:-1], 1)
    gw = g * memory(weight)
    grad_x = memory(rstd).reshape(*x.shape[:-1], 1) * (gw - u * (gw * u).mean(-1, keepdims=True))
    grad_weight = (g * u).reshape(-1, x.shape[-1]).sum(0)
    found = [torch.from_numpy(np.ascontiguousarray(grad, np.float32)) for grad in (grad_x, grad_weight)]
    return found[0] if needs[0] else None, found[1] if needs[1] else None


def own(
    x: torch.Tensor, weight: torch.Tensor, *, eps: float, out: torch.Tensor | None = None, save: bool = False
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    CALLS.append("own")
    root = torch.sqrt(x.square().mean(-1, keepdim=True) + eps)
    y = (x / root * weight).contiguous()
    y = y if out is None else out.copy_(y)
    return (y, root.reshape(-1)) if save else y


def own_backward(
    grad_y: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    root: torch.Tensor,
    *,
    eps: float,
    needs: tuple[bool, bool],
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    CALLS.append("own_backward")
    root = root.reshape(*x.shape[:-1], 1)
    u, gw = x / root, grad_y * weight
    grad_x = ((gw - u * (gw * u).mean(-1, keepdim=True)) / root).contiguous()
    return grad_x if needs[0] else None, (grad_y * u).reshape(-1, x.shape[-1]).sum(0) if needs[1] else None
