"""Intel's GPUs by PCI device id: the arch of each, and its product's name where Intel gives one.

Source: Linux, include/drm/intel/pciids.h; intel/compute-runtime, shared/source/dll/devices/devices_base.inl. Ids are
given to a GPU in blocks: a block stands here whole where nothing else is in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

ARCHS: tuple[tuple[str, tuple[range, ...]], ...] = (
    ("dg2", (range(0x4F80, 0x4F90), range(0x5690, 0x56D0))),
    ("pvc", (range(0x0B69, 0x0B6A), range(0x0B6E, 0x0B6F), range(0x0BD0, 0x0BF0))),
    ("mtl", tuple(range(at, at + 1) for at in (0x7D40, 0x7D45, 0x7D55, 0x7D60, 0x7DD5))),
    ("arl", tuple(range(at, at + 1) for at in (0x7D41, 0x7D67, 0xB640))),
    ("arl_h", tuple(range(at, at + 1) for at in (0x7D51, 0x7DD1))),
    ("lnl", (range(0x6420, 0x6421), range(0x64A0, 0x64C0))),
    ("bmg", (range(0xE200, 0xE230),)),
    ("ptl", (range(0xB080, 0xB0C0),)),
    ("wcl", (range(0xFD80, 0xFD90),)),
    ("nvls", (range(0xD740, 0xD750),)),
    ("nvlp", (range(0xD750, 0xD760),)),
    ("cri", (range(0x674C, 0x6751),)),
)
_DISCRETE = frozenset({"dg2", "pvc", "bmg", "cri"})

# Xe-LP: Level Zero enumerates these GPUs too, so that they have a number, and no kernel here is for them.
XE_LP_DISCRETE = range(0x4905, 0x490A)
XE_LP = (
    range(0x4626, 0x462B),
    range(0x4680, 0x46D5),
    range(0x4C80, 0x4C9B),
    range(0x9A40, 0x9B00),
    range(0xA720, 0xA722),
    range(0xA780, 0xA7AE),
)

NAMES: Mapping[int, str] = MappingProxyType(
    {
        0x0B69: "Intel Data Center GPU Max 1450",
        0x0B6E: "Intel Data Center GPU Max 1100C",
        0x0BD4: "Intel Data Center GPU Max 1550VG",
        0x0BD5: "Intel Data Center GPU Max 1550",
        0x0BD6: "Intel Data Center GPU Max 1550",
        0x0BD7: "Intel Data Center GPU Max 1350",
        0x0BD8: "Intel Data Center GPU Max 1350",
        0x0BD9: "Intel Data Center GPU Max 1100",
        0x0BDA: "Intel Data Center GPU Max 1100",
        0x0BDB: "Intel Data Center GPU Max 1100",
        0x5690: "Intel Arc A770M",
        0x5691: "Intel Arc A730M",
        0x5692: "Intel Arc A550M",
        0x5693: "Intel Arc A370M",
        0x5694: "Intel Arc A350M",
        0x5696: "Intel Arc A570M",
        0x5697: "Intel Arc A530M",
        0x56A0: "Intel Arc A770",
        0x56A1: "Intel Arc A750",
        0x56A2: "Intel Arc A580",
        0x56A5: "Intel Arc A380",
        0x56A6: "Intel Arc A310",
        0x56AF: "Intel Arc A760A",
        0x56B0: "Intel Arc Pro A30M",
        0x56B1: "Intel Arc Pro A40 or A50",
        0x56B2: "Intel Arc Pro A60M",
        0x56B3: "Intel Arc Pro A60",
        0x56BA: "Intel Arc A380E",
        0x56BB: "Intel Arc A310E",
        0x56BC: "Intel Arc A370E",
        0x56BD: "Intel Arc A350E",
        0x56BE: "Intel Arc A750E",
        0x56BF: "Intel Arc A580E",
        0x56C0: "Intel Data Center GPU Flex 170",
        0x56C1: "Intel Data Center GPU Flex 140",
        0x56C2: "Intel Data Center GPU Flex 170V",
        0x7D51: "Intel Arc Graphics",
        0x7D55: "Intel Arc Graphics",
        0x64A0: "Intel Arc Graphics",
        0xB080: "Intel Arc B390",
        0xB081: "Intel Arc B370",
        0xB082: "Intel Arc B390",
        0xB083: "Intel Arc B370",
        0xE209: "Intel Arc B580",
        0xE20B: "Intel Arc B580",
        0xE20C: "Intel Arc B570",
        0xE211: "Intel Arc Pro B60",
        0xE212: "Intel Arc Pro B50",
    }
)


@dataclass(frozen=True, slots=True)
class Product:
    """What a PCI device id says of a GPU; ``arch`` is None for the generation before those of ``backend.yaml``."""

    arch: str | None
    name: str
    discrete: bool


def product(device_id: int) -> Product | None:
    """The GPU with that PCI device id, or None when it is in none of the blocks."""
    for arch, blocks in ARCHS:
        if any(device_id in block for block in blocks):
            name = NAMES.get(device_id, f"Intel GPU {device_id:04x} ({arch})")
            return Product(arch, name, arch in _DISCRETE)
    if device_id in XE_LP_DISCRETE or any(device_id in block for block in XE_LP):
        return Product(None, f"Intel GPU {device_id:04x}", device_id in XE_LP_DISCRETE)
    return None
