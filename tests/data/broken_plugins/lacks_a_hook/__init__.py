"""A plugin without the hook that its manifest lists."""
