"""Tensors as launches see them: layout, placement, captures and compilations; what torch was built for."""
