"""``portakernel.tensors.compilation`` under the name that packages written for plugin API 1 import."""

from portakernel.tensors.compilation import Compilations, announce_once, compilations

__all__ = [
    "Compilations",
    "announce_once",
    "compilations",
]
