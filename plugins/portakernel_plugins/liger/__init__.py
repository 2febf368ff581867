"""Plugin ``liger``: the training kernels of Liger-Kernel (LinkedIn), in Triton."""
