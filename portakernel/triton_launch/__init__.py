"""Triton kernels: launched without the binder, interpreted, compiled ahead; Triton's caches; whether it works here."""
