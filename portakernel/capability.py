"""``portakernel.claims.capability`` under the name that plugins import."""

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
