"""What was measured of kernels, where it is kept, and what is decided by it."""
