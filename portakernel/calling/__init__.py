"""A call of an op: its arguments, its key, its kernel, its outputs."""
