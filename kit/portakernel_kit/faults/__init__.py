"""Faults put into the source of kernels, one at a time: which of them the conformance kit finds."""
