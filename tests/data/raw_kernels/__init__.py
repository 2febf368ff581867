"""A plugin whose kernels read addresses, so that whatever a raw launch would get wrong becomes a wrong number."""
