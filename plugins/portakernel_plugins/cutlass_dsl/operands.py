"""What a compiled kernel is called with: addresses and numbers, which need no translation of torch's tensors."""

from typing import NamedTuple

from cutlass import Int32, Int64, cute


class Operands(NamedTuple):
    """The addresses of the matrices and of the bias, each a multiple of 16."""

    x: cute.Pointer
    weight: cute.Pointer
    bias: cute.Pointer
    y: cute.Pointer


class Sizes(NamedTuple):
    """Sizes, and strides from row to row: multiples of 8 but for M."""

    M: Int32
    N: Int32
    K: Int32
    x: Int64
    weight: Int64
    y: Int64


@cute.jit
def tensors(operands: Operands, sizes: Sizes):
    """x: (M, K, 1), weight: (N, K, 1), bias: (N,), y: (M, N, 1); the last dimension is a batch's."""
    M, N, K = sizes.M, cute.assume(sizes.N, divby=8), cute.assume(sizes.K, divby=8)
    x = _matrix(operands.x, M, K, sizes.x)
    weight = _matrix(operands.weight, N, K, sizes.weight)
    y = _matrix(operands.y, M, N, sizes.y)
    return x, weight, cute.make_tensor(operands.bias, cute.make_layout((N,))), y


@cute.jit
def _matrix(pointer, rows, columns, stride):
    stride = cute.assume(stride, divby=8)
    return cute.make_tensor(pointer, cute.make_layout((rows, columns, 1), stride=(stride, 1, 0)))
