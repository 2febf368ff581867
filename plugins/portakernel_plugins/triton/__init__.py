"""Kernels in Triton: one source for every NVIDIA and AMD GPU that Triton compiles for."""
