"""``portakernel explain``: which kernel serves, and why; one decision in sentences, many as a table."""
