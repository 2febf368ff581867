"""Targets (vendor and architecture) and the devices that backends find."""

from __future__ import annotations

import re
from dataclasses import dataclass

from portakernel.arch import normalise
from portakernel.errors import ArgumentValueError

_VENDOR = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, slots=True, order=True)
class Target:
    """Vendor and architecture of one device, written ``nvidia:sm_90``."""

    vendor: str
    arch: str

    def __str__(self) -> str:
        return f"{self.vendor}:{self.arch}"

    @classmethod
    def parse(cls, text: str) -> Target:
        """The target written ``vendor:arch``; run-time feature flags of the arch are dropped.

        Whether the vendor and the arch exist is the registry's question (``Registry.target``), not this one's.

        Raises:
            ArgumentValueError: the text is not of that form.
        """
        vendor, colon, arch = text.strip().partition(":")
        if not colon or not normalise(arch) or not _VENDOR.fullmatch(vendor):
            raise ArgumentValueError(
                f"target {text!r} is not of the form vendor:arch, such as nvidia:sm_90 or amd:gfx942"
            )
        return cls(vendor, normalise(arch))


@dataclass(frozen=True, slots=True)
class Device:
    """One device of this machine, as a backend found it.

    ``torch_device`` is torch's name for it (``cuda:0``) after visibility masks, or ``None`` where the installed torch
    cannot reach it; ``note`` then says why. ``uuid`` is the vendor's identity and outlives re-numbering.
    """

    target: Target
    name: str
    torch_device: str | None
    uuid: str | None = None
    memory_bytes: int | None = None
    driver: str | None = None
    attached: bool = False
    note: str = ""
