"""``portakernel check``: kernels held to every case of their op, and to requests that are drawn."""
