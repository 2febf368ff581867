"""Mixtures of experts in Triton: who goes where, in which order."""
