"""Which kernels there are: packages, their hooks, and what their manifests claim."""
