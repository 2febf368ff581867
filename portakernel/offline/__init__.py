"""Compiling kernels for targets that are not in this machine, and reading what the compiler did."""
