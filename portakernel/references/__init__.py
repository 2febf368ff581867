"""The formulas, one torch module per op, written to be read.

Each has ``forward`` and, where the op has a backward kernel, ``backward`` and ``magnitudes``; they follow the calling
convention of kernels and compute in float32, or in float64 when given float64.
"""
