"""Manifests changed in one place, to see who of the kit notices."""
