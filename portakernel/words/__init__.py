"""The plain vocabulary: dtypes, architectures, targets and the names that people have for them."""
