"""``portakernel.words.target`` under the name that packages written for plugin API 1 import."""

from portakernel.words.target import Device, Target

__all__ = [
    "Device",
    "Target",
]
