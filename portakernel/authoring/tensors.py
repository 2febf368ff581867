"""Tensors as kernels meet them: rows, where results go, packed weights, values on the host, captures, graphs."""

from __future__ import annotations

from portakernel.calling.outputs import copy_into
from portakernel.paging import to_csr
from portakernel.references.int4_weights import int4_parts
from portakernel.tensors.capture import is_capturing
from portakernel.tensors.compilation import announce_once, compilations
from portakernel.tensors.dense import as_bytes, delivered, dense, is_aligned, room, rows
from portakernel.tensors.derived import Derived
from portakernel.tensors.index_values import check_indices, check_offsets, sequence_ends
from portakernel.tensors.rows import contiguous_like, joined_stride, row_stride, row_target, with_row_stride
from portakernel.tensors.torch_internals import node_in_backward, saved_tensor_hooks

__all__ = [
    "Derived",
    "announce_once",
    "as_bytes",
    "check_indices",
    "check_offsets",
    "compilations",
    "contiguous_like",
    "copy_into",
    "delivered",
    "dense",
    "int4_parts",
    "is_aligned",
    "is_capturing",
    "joined_stride",
    "node_in_backward",
    "room",
    "row_stride",
    "row_target",
    "rows",
    "saved_tensor_hooks",
    "sequence_ends",
    "to_csr",
    "with_row_stride",
]
