"""Kernels asked for what they claim and for what their claims refuse, in processes that may die."""
