"""``portakernel faults``: options, a run, what it prints."""
