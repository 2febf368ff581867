"""A plugin that raises while it is imported."""

raise RuntimeError("the driver is not there")
