"""Measuring which kernel is the fastest that is right: what ``portakernel tune`` and ``regret`` run."""
