"""``portakernel.words.target`` under the name that plugins import."""

from portakernel.words.target import (
    Device,
    Target,
)

__all__ = [
    "Device",
    "Target",
]
