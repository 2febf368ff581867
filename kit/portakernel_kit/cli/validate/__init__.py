"""``portakernel validate``: what is wrong with manifests, policies and sources; no plugin is imported."""
