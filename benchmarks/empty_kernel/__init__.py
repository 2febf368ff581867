"""A plugin whose kernel does nothing: what a call of it costs is what selection and launch cost."""
