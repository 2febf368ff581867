"""Calls with arrays of NumPy, JAX and CuPy: as tensors on the same memory, with results of the caller's kind."""
