"""``portakernel bench``: what it asks for and prints; what it measures with is ``portakernel_kit.bench``."""
