"""``portakernel plan``: its commands, a module each."""
