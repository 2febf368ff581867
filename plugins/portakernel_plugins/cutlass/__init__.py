"""Plugin ``cutlass``: NVIDIA's template library for matrix products, compiled by nvcc ahead of calls."""
