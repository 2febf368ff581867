"""``portakernel.tensors.compilation`` under the name that plugins import."""

from portakernel.tensors.compilation import (
    Compilations,
    announce_once,
    compilations,
)

__all__ = [
    "Compilations",
    "announce_once",
    "compilations",
]
