"""Every ``PORTAKERNEL_*`` environment variable, in one table; read when a dispatcher is made, never on a call."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from portakernel.errors import ConfigError, nearest

PREFIX = "PORTAKERNEL_"


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable: what it does, and the values it accepts where they can be listed."""

    name: str
    summary: str
    choices: tuple[str, ...] = ()


VARIABLES: tuple[Variable, ...] = (
    Variable("PORTAKERNEL_USE", "Kernels or plugins to use strictly: theirs, or an error (comma-separated)."),
    Variable("PORTAKERNEL_PREFER", "Kernels or plugins to try first, best first (comma-separated)."),
    Variable("PORTAKERNEL_DENY", "Kernels or plugins never to use (comma-separated)."),
    Variable("PORTAKERNEL_REFERENCE", "What the references may do on accelerators.", ("allow", "warn", "forbid")),
    Variable(
        "PORTAKERNEL_DISABLE", "Plugins, backends or kernels to switch off; they are not imported (comma-separated)."
    ),
)


@dataclass(frozen=True, slots=True)
class Config:
    """The variables' values; empty where not set."""

    use: tuple[str, ...] = ()
    prefer: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    reference: str | None = None
    disable: tuple[str, ...] = ()

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Config:
        """The configuration that the environment gives.

        Raises:
            ConfigError: a variable has a value that is not accepted.
        """
        values = os.environ if environment is None else environment

        def names(key: str) -> tuple[str, ...]:
            text = values.get(PREFIX + key, "")
            return tuple(name.strip() for name in text.split(",") if name.strip())

        reference = values.get("PORTAKERNEL_REFERENCE", "").strip() or None
        choices = next(variable.choices for variable in VARIABLES if variable.name == "PORTAKERNEL_REFERENCE")
        if reference is not None and reference not in choices:
            raise ConfigError(f"PORTAKERNEL_REFERENCE is {reference!r}; {nearest(reference, choices)}")
        return cls(names("USE"), names("PREFER"), names("DENY"), reference, names("DISABLE"))


def unknown_variables(environment: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """A sentence for each ``PORTAKERNEL_*`` variable that is set and means nothing."""
    known = [variable.name for variable in VARIABLES]
    values = os.environ if environment is None else environment
    strangers = sorted(name for name in values if name.startswith(PREFIX) and name not in known)
    return tuple(f"{name} is set, but no such variable exists; {nearest(name, known)}" for name in strangers)
