"""Triton's attention as a plugin for CPUs: a kernel of every launch runs in Triton's interpreter."""
