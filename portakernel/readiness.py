"""``portakernel.deciding.readiness`` under the name that packages written for plugin API 1 import."""

from portakernel.deciding.readiness import Readiness, Usable, installed_version, required

__all__ = [
    "Readiness",
    "Usable",
    "installed_version",
    "required",
]
