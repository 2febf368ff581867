"""Tensors of the CPU as OpenCL takes them: contiguous, aligned for their type, as bytes."""

from __future__ import annotations

import torch
from torch import Tensor

from opencl_backend.launch import Bytes

# How storage.cl calls them.
STORAGES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


def readable(tensor: Tensor) -> Bytes:
    """The bytes of a tensor's numbers: where they lie, or of a copy where they lie otherwise than OpenCL reads them."""
    return bytes_of(tensor if _fits(tensor) else tensor.clone(memory_format=torch.contiguous_format))


def writable(out: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """``out`` where a kernel can write into it, else new memory, which ``delivered`` brings to ``out``."""
    return out if out is not None and _fits(out) else torch.empty(shape, dtype=dtype)


def delivered(result: Tensor, out: Tensor | None) -> Tensor:
    """``out``, holding ``result``; ``result`` itself where there is none, or it was written into."""
    return result if out is None or out is result else out.copy_(result)


def bytes_of(tensor: Tensor) -> Bytes:
    """A contiguous tensor's memory. Its strides are not asked: a single element may have any."""
    flat = tensor.detach().as_strided((tensor.numel(),), (1,))
    return flat.view(torch.uint8).numpy()


def _fits(tensor: Tensor) -> bool:
    # OpenCL wants a buffer's memory aligned for its type; torch.frombuffer makes tensors that are not.
    return tensor.is_contiguous() and tensor.data_ptr() % tensor.element_size() == 0
