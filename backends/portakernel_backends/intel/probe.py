"""Finds Intel GPUs in the tree that the kernel publishes under /sys, without Level Zero, SYCL and torch.

Level Zero is never initialised here: a process that has done so cannot fork workers that use the GPU. The tree exists
on Linux only; no device is reported on Windows and in WSL.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from portakernel.authoring import Device, Target, logger
from portakernel.authoring.host import TorchBuild, is_exhausted, read_regular, torch_build
from portakernel_backends.intel.affinity import visible_tiles
from portakernel_backends.intel.products import Product, product

_LOG = logger()
_MAX_BYTES = 1 << 20

_INTEL = 0x8086
# The drivers that Level Zero can use.
_DRIVERS = ("i915", "xe")
_HIERARCHIES = ("FLAT", "COMBINED", "COMPOSITE")

_NEWER = "its PCI device id is in no list here: probably newer than the listed archs"
_NOT_TAKEN = (
    "torch takes integrated GPUs only where no discrete one is visible: set ZE_AFFINITY_MASK to this one's number"
)
_SELECTED = "its number is presumed, because ONEAPI_DEVICE_SELECTOR is set and not read: use ZE_AFFINITY_MASK instead"
# What leaves every GPU of Level Zero in place.
_SELECTS_ALL = ("", "level_zero:*", "level_zero:gpu", "*:gpu", "*:*")


@dataclass(frozen=True, slots=True)
class _Gpu:
    """One GPU of this machine; ``address`` is that on the PCI bus, and ``node`` the device file that opens it."""

    product: Product
    address: tuple[int, ...]
    tiles: int
    memory_bytes: int | None
    driver: str
    node: Path


def find(
    *,
    sysfs: Path = Path("/sys"),
    dri: Path = Path("/dev/dri"),
    environ: Mapping[str, str] | None = None,
    build: Callable[[], TorchBuild | None] = torch_build.installed,
) -> list[Device]:
    """The Intel GPUs that ``ZE_AFFINITY_MASK`` leaves visible, in torch's order; empty without the driver.

    Level Zero puts discrete GPUs first, each kind by PCI address, or all by PCI address with
    ``ZE_ENABLE_PCI_ID_DEVICE_ORDER``; each tile of a Data Center GPU Max is a device, unless
    ``ZE_FLAT_DEVICE_HIERARCHY`` is ``COMPOSITE``. ``ONEAPI_DEVICE_SELECTOR`` and the driver's debug keys are not read;
    where the former is set, the note says so.
    """
    try:
        environment = os.environ if environ is None else environ
        gpus = _given(_gpus(sysfs, dri))
        if not gpus:
            return []
        return _devices(gpus, environment, torch_build.unreachable(build(), "XPU"))
    except Exception as error:
        if is_exhausted(error):
            raise
        # a broken driver must not stop a program that may not even use the GPU
        _LOG.debug("Intel devices could not be found", exc_info=True)
        return []


def _gpus(sysfs: Path, dri: Path) -> list[_Gpu]:
    """Every GPU of this machine that Level Zero knows."""
    found: list[_Gpu] = []
    for minor in sorted((sysfs / "class/drm").glob("renderD*")):
        device = minor / "device"
        event = _text(device / "uevent")
        driver = _value(event, "DRIVER")
        if _number(device / "vendor") != _INTEL or driver not in _DRIVERS:
            continue
        device_id = _number(device / "device") or 0
        address = tuple(int(part, 16) for part in re.findall(r"[0-9a-fA-F]+", _value(event, "PCI_SLOT_NAME")))
        known = product(device_id)
        if known is None:
            if driver != "xe":  # i915 also drives what is older than Level Zero
                continue
            # Intel's integrated GPUs are all found at 00:02.0.
            known = Product("unknown", f"Intel GPU {device_id:04x}", address[1:] != (0, 2, 0))
        version = _text(sysfs / "module" / driver / "version").strip()
        found.append(
            _Gpu(
                product=known,
                address=address,
                tiles=_tiles(device) if known.arch == "pvc" else 1,
                memory_bytes=_memory_bytes(device),
                driver=f"{driver} {version}".strip(),
                node=dri / minor.name,
            )
        )
    return found


def _value(event: str, key: str) -> str:
    """What the lines of a ``uevent`` file say of ``key``; empty when nothing."""
    found = re.search(rf"^{key}=(.*)$", event, re.MULTILINE)
    return found[1] if found else ""


def _tiles(device: Path) -> int:
    """How many tiles the driver shows, xe as such and i915 as the GTs of the one device."""
    return sum(1 for _ in device.glob("tile[0-9]*")) or sum(1 for _ in device.glob("drm/card*/gt/gt[0-9]*")) or 1


def _memory_bytes(device: Path) -> int | None:
    """The GPU's own memory: xe tells each tile's, Intel's own builds of i915 all of it, Linux's i915 nothing."""
    files = [*device.glob("tile*/physical_vram_size_bytes"), *device.glob("drm/card*/lmem_total_bytes")]
    return sum(_number(file) or 0 for file in files) or None


def _number(path: Path) -> int | None:
    """The number in a file, decimal or ``0x``; None where there is none."""
    try:
        return int(_text(path).strip(), 0)
    except ValueError:
        return None


def _text(path: Path) -> str:
    try:
        return read_regular(path, limit=_MAX_BYTES).decode("utf-8", "replace")
    except OSError as error:
        if is_exhausted(error):
            raise
        _LOG.debug("%s", error)
        return ""


def _given(gpus: Sequence[_Gpu]) -> list[_Gpu]:
    """The GPUs whose device files are here; a container's /sys shows others too. All where it has none of them."""
    given = [gpu for gpu in gpus if gpu.node.exists()]
    return given or list(gpus)


def _no_access(gpu: _Gpu) -> str:
    """Why Level Zero cannot open a GPU; empty when it can."""
    if not gpu.node.exists():
        return f"{gpu.node} does not exist: give the container that device"
    if not os.access(gpu.node, os.R_OK | os.W_OK):
        return f"no permission to open {gpu.node}: add this user to the group that owns it (render)"
    return ""


def _devices(gpus: Sequence[_Gpu], environ: Mapping[str, str], unreachable: str) -> list[Device]:
    by_address = (environ.get("ZE_ENABLE_PCI_ID_DEVICE_ORDER") or "0") != "0"
    ordered = sorted(gpus, key=lambda gpu: (not by_address and not gpu.product.discrete, gpu.address))
    opened = [gpu for gpu in ordered if not _no_access(gpu)]
    visible = list(_visible(opened, environ))
    discrete = any(gpu.product.discrete for gpu, _ in visible)
    selected = environ.get("ONEAPI_DEVICE_SELECTOR", "") not in _SELECTS_ALL
    devices: list[Device] = []
    number = 0
    for gpu, tile in visible:
        taken = gpu.product.discrete or not discrete
        note = unreachable or ("" if taken else _NOT_TAKEN)
        reachable = not note
        if gpu.product.arch is not None:
            tile_note = "" if tile is None else f"tile {tile} of {gpu.tiles}"
            newer = _NEWER if gpu.product.arch == "unknown" else ""
            notes = (note or (_SELECTED if selected else ""), tile_note, newer)
            devices.append(_device(gpu, f"xpu:{number}" if reachable else None, notes, tile))
        number += reachable
    closed = [(gpu, _no_access(gpu)) for gpu in ordered if gpu not in opened and gpu.product.arch is not None]
    return devices + [_device(gpu, None, (unreachable or why,)) for gpu, why in closed]


def _visible(gpus: Sequence[_Gpu], environ: Mapping[str, str]) -> Iterator[tuple[_Gpu, int | None]]:
    """What Level Zero enumerates: GPUs, or tiles of those that have several."""
    hierarchy = environ.get("ZE_FLAT_DEVICE_HIERARCHY", "")
    if hierarchy not in _HIERARCHIES:
        hierarchy = "FLAT" if any(gpu.product.arch == "pvc" for gpu in gpus) else "COMPOSITE"
    flat = hierarchy != "COMPOSITE"
    pairs = visible_tiles(environ.get("ZE_AFFINITY_MASK"), [gpu.tiles for gpu in gpus], flat=flat)
    if flat:
        for at, tile in pairs:
            yield gpus[at], tile if gpus[at].tiles > 1 else None
    else:
        for at in dict.fromkeys(at for at, _ in pairs):
            yield gpus[at], None


def _device(gpu: _Gpu, torch_device: str | None, notes: Sequence[str], tile: int | None = None) -> Device:
    memory = gpu.memory_bytes
    return Device(
        target=Target("intel", gpu.product.arch or "unknown"),
        name=gpu.product.name,
        torch_device=torch_device,
        memory_bytes=memory if memory is None or tile is None else memory // gpu.tiles,
        driver=gpu.driver,
        note="; ".join(filter(None, notes)),
    )
