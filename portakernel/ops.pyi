"""The public ops. Generated from the contracts by `make generate`."""

from torch import Tensor

def add(
    x: Tensor,
    y: Tensor,
    *,
    out: Tensor | None = None,
    kernel: str | None = None,
) -> Tensor:
    """The elementwise sum of two tensors of one shape and dtype.

    ``x + y``

    Computed in float32 and rounded once. Broadcasting is refused. Not guaranteed: the bits of a NaN.

    Args:
        x: (...,), float32 or float16 or bfloat16.
        y: (...,), the dtype of x.
        out: where to write; may be x or y itself.
        kernel: a kernel or plugin to use strictly: that one, or an error.

    Raises:
        ArgumentTypeError, ArgumentValueError: dtypes, ranks, shapes or devices do not fit the op.
        NoKernelError: no kernel can serve the call; the message has every kernel's reason.

    Source: IEEE 754-2019, 5.4.1 (addition).
    """

def rms_norm(
    x: Tensor,
    weight: Tensor,
    *,
    eps: float = 1e-06,
    weight_offset: float = 0.0,
    out: Tensor | None = None,
    kernel: str | None = None,
) -> Tensor:
    """Root mean square layer normalisation over the last dimension.

    ``x * rsqrt(mean(x**2, -1) + eps) * (weight + weight_offset)``

    Everything is computed in float32 and rounded once, at the end: libraries that round before the weight differ
    by up to one unit in the last place. weight_offset=1.0 is Gemma's form. Forward saves rstd (M,), the
    reciprocal root, in float32. Not guaranteed: equal bits from different kernels; finite results where the sum
    of squares exceeds float32; zeros beside an infinity, where a kernel may give NaN for the whole row; terms of
    a gradient that are subnormal in float32, which a kernel may flush to zero.

    Args:
        x: (..., N), float32 or float16 or bfloat16.
        weight: (N,), the dtype of x or float32.
        eps: a value; default 1e-06.
        weight_offset: a feature, neutral at 0.0.
        out: where to write; may be x itself.
        kernel: a kernel or plugin to use strictly: that one, or an error.

    Raises:
        ArgumentTypeError, ArgumentValueError: dtypes, ranks, shapes or devices do not fit the op.
        NoKernelError: no kernel can serve the call; the message has every kernel's reason.

    Source: Zhang & Sennrich 2019, Root Mean Square Layer Normalization, arXiv 1910.07467, equation 4.
    """
