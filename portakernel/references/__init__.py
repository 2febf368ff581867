"""The formulas, one torch module per op, written to be read.

Each has ``forward`` and, where the op has a backward kernel, ``backward`` and ``magnitudes``; they follow the calling
convention of kernels and compute in float32, or in float64 when given float64. ``saved`` computes the saved tensors
again, from what backward is given, for second derivatives; an op has it whose backward does not get every argument.
Some have more, for conformance alone:

- ``truth``: the results in float64 before they are rounded, where ``forward`` on float64 inputs does not give them;
- ``plain``: the formula in the inputs' own dtype, differentiable, for ops whose tolerance is measured by its error
  (``Tolerance.rule``). It returns the results that are compared in this way, outputs first, then saved tensors;
- ``output_magnitudes`` and ``saved_magnitudes``: the sums of absolute terms behind results that can cancel, None for
  those that cannot;
- ``output_roundings``: what roundings of parts of sums to the result's dtype are in proportion to;
- ``gradient_doubts``: by how much gradients may differ where rounding decides about a slope.
"""
