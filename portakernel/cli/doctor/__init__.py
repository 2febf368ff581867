"""``portakernel doctor``: the state of an installation, what is wrong, and what to do."""
