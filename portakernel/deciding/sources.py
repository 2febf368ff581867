"""The plan and the measurements that a process begins with, as its variables say; read when there are any."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from portakernel.config import Config
from portakernel.registry.registry import Registry

if TYPE_CHECKING:
    from portakernel.deciding.measurements import Measurements
    from portakernel.plan.plan import Plan


def followed_plan(path: str | Path | None, registry: Registry, *, named_by: str) -> Plan | None:
    """The plan at ``path``; None where none is given.

    Raises:
        PlanError: it is refused.
    """
    if path is None:
        return None
    from portakernel.plan.reading import read_plan  # its models cost those who have no plan nothing

    return read_plan(path, registry, named_by=named_by)


def measurements(config: Config, registry: Registry) -> Measurements | None:
    """What was measured, a user's own records before those that ship; None where nothing was, or nothing may count."""
    if config.tuning == "off":
        return None
    from portakernel.tuning.place import defaults_root, own_root, reading_trouble

    own = own_root(config.tuning_dir)
    roots = [root for root in (own, defaults_root()) if root != own or not reading_trouble(own)]
    roots = [root for root in roots if root.is_dir()]
    if not roots:
        return None
    from portakernel.deciding.measurements import Measurements
    from portakernel.tuning.key import Regime

    found = Measurements(registry, roots, Regime(config.tuning))
    return found if found.places() else None


def unread_store(config: Config) -> str:
    """That the store which ``PORTAKERNEL_TUNING_DIR`` names cannot be read, and what to do; empty where it can.

    Nothing is said of the default one: where it cannot be, nobody has tuned.
    """
    if not config.tuning_dir or config.tuning == "off":
        return ""
    from portakernel.tuning.place import REMEDY, own_root, reading_trouble

    own = own_root(config.tuning_dir)
    found = reading_trouble(own)
    return found and f"the store of measurements {own} {found}: nothing of it decides; {REMEDY}"
