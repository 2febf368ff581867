"""Masks as kernels meet them: a call's function by its name, sizes of blocks, and pairs of lists."""

from __future__ import annotations

from portakernel.tensors.block_lists import paired, turned
from portakernel.words.masks import BLOCKS, BUILT_IN, Mask, found_for, named

__all__ = ["BLOCKS", "BUILT_IN", "Mask", "found_for", "named", "paired", "turned"]
