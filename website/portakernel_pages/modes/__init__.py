"""Every mode of PyTorch for every op: what works, and what is refused and how. ``docs/modes.md`` is the table."""
