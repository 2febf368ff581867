"""Kernels in HIP C++: one source for AMD's wavefronts of 32 and 64, and for NVIDIA's warps."""
