"""Every ``PORTAKERNEL_*`` environment variable, in one table; read when a dispatcher is made, never on a call."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from portakernel.errors import ConfigError, nearest

PREFIX = "PORTAKERNEL_"
# Of compiled kernels: a CUTLASS kernel takes one to three MiB, one of the HIP plugin's 20 KiB.
_CACHE_MIB = 4096


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
    Variable("PORTAKERNEL_POLICY", "The policy file, with wishes for all or single ops and targets (a path)."),
    Variable(
        "PORTAKERNEL_DISABLE", "Plugins, backends or kernels to switch off; they are not imported (comma-separated)."
    ),
    Variable("PORTAKERNEL_LOG", "What to tell on stderr; summary: at exit, what served how many calls.", ("summary",)),
    Variable("PORTAKERNEL_CACHE_DIR", "The folder that keeps kernels compiled from C++ (a path)."),
    Variable("PORTAKERNEL_CACHE_MIB", "How much it keeps, in MiB; what was used longest ago goes first."),
)


@dataclass(frozen=True, slots=True)
class Config:
    """The variables' values; empty where not set."""

    use: tuple[str, ...] = ()
    prefer: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    reference: str | None = None
    disable: tuple[str, ...] = ()
    policy: str | None = None
    log: str | None = None
    cache_dir: str | None = None
    cache_mib: int = _CACHE_MIB

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

        def choice(key: str) -> str | None:
            value = values.get(PREFIX + key, "").strip() or None
            choices = next(variable.choices for variable in VARIABLES if variable.name == PREFIX + key)
            if value is not None and value not in choices:
                raise ConfigError(f"{PREFIX + key} is {value!r}; {nearest(value, choices)}")
            return value

        def number(key: str, default: int) -> int:
            text = values.get(PREFIX + key, "").strip()
            if text and not text.isdecimal():
                raise ConfigError(f"{PREFIX + key} is {text!r}; give a whole number, 0 or more")
            return int(text) if text else default

        policy = values.get("PORTAKERNEL_POLICY", "").strip() or None
        wishes = names("USE"), names("PREFER"), names("DENY"), choice("REFERENCE")
        folder = values.get("PORTAKERNEL_CACHE_DIR", "").strip() or None
        return cls(*wishes, names("DISABLE"), policy, choice("LOG"), folder, number("CACHE_MIB", _CACHE_MIB))


def unknown_variables(environment: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """A sentence for each ``PORTAKERNEL_*`` variable that is set and means nothing."""
    known = [variable.name for variable in VARIABLES]
    values = os.environ if environment is None else environment
    strangers = sorted(name for name in values if name.startswith(PREFIX) and name not in known)
    return tuple(f"{name} is set, but no such variable exists; {nearest(name, known)}" for name in strangers)
