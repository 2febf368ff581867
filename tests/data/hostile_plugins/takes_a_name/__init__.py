"""A plugin that does wrong: calls itself as a plugin that ships with portakernel."""
