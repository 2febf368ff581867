"""The formulas, one torch module per op, written to be read.

Each has ``forward`` and, where the op has a backward kernel, ``backward`` and ``magnitudes``; they follow the calling
convention of kernels and compute in float32, or in float64 when given float64. Where forward saves tensors and backward
is not given every argument, ``saved`` computes them again from what else it is given, for second derivatives. For
conformance alone some have more:

- ``truth``: the results in float64, before they are rounded, where ``forward`` on float64 inputs does not give them;
- ``plain``: the formula in the inputs' own dtype, differentiable, for ops that are compared row by row with its error
  (``Tolerance.rule``); the results that are compared so, saved ones behind the outputs;
- ``output_magnitudes`` and ``saved_magnitudes``: the sums of absolute terms behind results that can cancel, None for
  those that cannot.
"""
