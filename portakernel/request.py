"""``portakernel.claims.request`` under the name that packages written for plugin API 1 import."""

from portakernel.claims.request import (
    PLAIN_FACTS,
    Phase,
    Request,
    asked_features,
    changed_values,
    format_values,
    typed_values,
)

__all__ = [
    "PLAIN_FACTS",
    "Phase",
    "Request",
    "asked_features",
    "changed_values",
    "format_values",
    "typed_values",
]
