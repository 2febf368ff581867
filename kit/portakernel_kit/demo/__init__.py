"""``portakernel demo``: a small language model that learns and writes, on plain torch and through the ops."""
