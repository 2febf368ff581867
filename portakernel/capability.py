"""``portakernel.claims.capability`` under the name that packages written for plugin API 1 import."""

from portakernel.claims.capability import (
    OUTRANKED,
    CannotRun,
    Capability,
    Limit,
    Property,
    ReasonCode,
    Rejection,
    Saves,
)

__all__ = [
    "OUTRANKED",
    "CannotRun",
    "Capability",
    "Limit",
    "Property",
    "ReasonCode",
    "Rejection",
    "Saves",
]
