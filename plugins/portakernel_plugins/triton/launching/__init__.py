"""What all kernels share: configurations, launches, rows, caches, and compiling ahead."""
