"""Targets (vendor and architecture) and the devices that backends find."""

from __future__ import annotations

import re
from dataclasses import dataclass

from portakernel.errors import ArgumentValueError
from portakernel.text.printable import brief, one_line
from portakernel.words.arch import normalise, surplus

_VENDOR = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, slots=True, order=True)
class Target:
    """Vendor and architecture of one device, written ``nvidia:sm_90``."""

    vendor: str
    arch: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "vendor", one_line(self.vendor))
        object.__setattr__(self, "arch", one_line(self.arch))

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
        if not colon or not normalise(arch) or surplus(arch) or not _VENDOR.fullmatch(vendor):
            raise ArgumentValueError(
                f"target {text!r} is not of the form vendor:arch, such as nvidia:sm_90 or amd:gfx942"
            )
        return cls(vendor, normalise(arch))


@dataclass(frozen=True, slots=True)
class Device:
    """One device of this machine, as a backend found it.

    ``torch_device`` is torch's name for it (``cuda:0``) after visibility masks, or ``None`` where the installed torch
    cannot reach it; ``note`` then says why. ``uuid`` is the vendor's identity and outlives re-numbering. ``features``
    are the options of its architecture (``optional`` in ``backend.yaml``) that it has; None where nobody could say.
    """

    target: Target
    name: str
    torch_device: str | None
    uuid: str | None = None
    memory_bytes: int | None = None
    driver: str | None = None
    attached: bool = False
    note: str = ""
    features: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        # drivers and plugins say these
        for name in ("name", "torch_device", "uuid", "driver", "note"):
            if (text := getattr(self, name)) is not None:
                object.__setattr__(self, name, one_line(text))

    def __repr__(self) -> str:
        return brief(f"<Device {self.torch_device or 'out of reach of torch'}: {self.name}, {self.target}>")
