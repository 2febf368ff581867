"""``portakernel validate``: what is wrong with manifests, policies and sources; no kernel is imported."""
