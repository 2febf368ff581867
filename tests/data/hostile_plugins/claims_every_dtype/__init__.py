"""A plugin that does wrong: claims dtypes that the op does not take."""
