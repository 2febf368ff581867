"""The part of NVML, NVIDIA's management library, that finds devices; through ctypes, without a CUDA context.

Run as a script it prints the inventory as JSON: the probe asks for it so, in a child process, because a driver in
trouble hangs or aborts. For that it imports the standard library alone.

Source: NVML API Reference Guide (nvml.h); names, buffer sizes and structures are its own.
"""

from __future__ import annotations

import ctypes
import json
import logging
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, TypeVar

_LOG = logging.getLogger("portakernel")
T = TypeVar("T")

# NVML_DEVICE_NAME_V2_BUFFER_SIZE, NVML_DEVICE_UUID_V2_BUFFER_SIZE and the version's 80, whichever is largest.
_TEXT_BYTES = 96

_RETURN_NAMES = {
    1: "NVML_ERROR_UNINITIALIZED",
    3: "NVML_ERROR_NOT_SUPPORTED",
    4: "NVML_ERROR_NO_PERMISSION",
    6: "NVML_ERROR_NOT_FOUND",
    9: "NVML_ERROR_DRIVER_NOT_LOADED",
    13: "NVML_ERROR_FUNCTION_NOT_FOUND",
    15: "NVML_ERROR_GPU_IS_LOST",
    999: "NVML_ERROR_UNKNOWN",
}
_FUNCTION_NOT_FOUND = 13


class _PciInfo(ctypes.Structure):
    """``nvmlPciInfo_t`` as ``nvmlDeviceGetPciInfo_v3`` fills it."""

    _fields_ = (
        ("bus_id_legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("pci_device_id", ctypes.c_uint),
        ("pci_subsystem_id", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    )


class _Memory(ctypes.Structure):
    """``nvmlMemory_t``."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class NvmlError(Exception):
    """An NVML function that did not return NVML_SUCCESS."""

    def __init__(self, function: str, code: int) -> None:
        self.function = function
        self.code = code
        super().__init__(f"{function} returned {code} ({_RETURN_NAMES.get(code, 'see nvmlReturn_t')})")


def load() -> Any | None:
    """The driver's NVML as a ctypes library, or None where there is no NVIDIA driver."""
    name = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        _LOG.debug("no NVIDIA driver: %s", error)
        return None


class Nvml:
    """NVML, initialised for the length of a ``with`` block. Every method raises NvmlError when NVML refuses."""

    __slots__ = ("_library",)

    def __init__(self, library: Any) -> None:
        self._library = library

    def __enter__(self) -> Nvml:
        self._call("nvmlInit_v2")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self._call("nvmlShutdown")
        except NvmlError as shutdown:  # what was asked is known by now
            _LOG.debug("%s", shutdown)

    def driver(self) -> str:
        """The driver's version, such as ``580.95.05``."""
        return self._text("nvmlSystemGetDriverVersion")

    def count(self) -> int:
        """How many GPUs this process may ask about."""
        return self._number("nvmlDeviceGetCount_v2")

    def handle(self, index: int) -> ctypes.c_void_p:
        """The handle of GPU ``index``."""
        handle = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
        return handle

    def name(self, handle: ctypes.c_void_p) -> str:
        """The product's name."""
        return self._text("nvmlDeviceGetName", handle)

    def uuid(self, handle: ctypes.c_void_p) -> str:
        """``GPU-…`` or, of a MIG device, ``MIG-…``."""
        return self._text("nvmlDeviceGetUUID", handle)

    def pci(self, handle: ctypes.c_void_p) -> tuple[int, int, int]:
        """Domain, bus and device: what CUDA's PCI_BUS_ID order sorts by."""
        info = _PciInfo()
        self._call("nvmlDeviceGetPciInfo_v3", handle, ctypes.byref(info))
        return int(info.domain), int(info.bus), int(info.device)

    def compute_capability(self, handle: ctypes.c_void_p) -> tuple[int, int]:
        """Major and minor."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvmlDeviceGetCudaComputeCapability", handle, ctypes.byref(major), ctypes.byref(minor))
        return major.value, minor.value

    def memory_bytes(self, handle: ctypes.c_void_p) -> int:
        """Total device memory; NVML refuses on devices that share the host's."""
        memory = _Memory()
        self._call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
        return int(memory.total)

    def mig_enabled(self, handle: ctypes.c_void_p) -> bool:
        """Whether the GPU is split into MIG devices now; NVML refuses on GPUs that cannot be."""
        current, pending = ctypes.c_uint(), ctypes.c_uint()
        self._call("nvmlDeviceGetMigMode", handle, ctypes.byref(current), ctypes.byref(pending))
        return current.value == 1

    def mig_count(self, handle: ctypes.c_void_p) -> int:
        """How many MIG devices the GPU can have; fewer may exist."""
        return self._number("nvmlDeviceGetMaxMigDeviceCount", handle)

    def mig_handle(self, handle: ctypes.c_void_p, index: int) -> ctypes.c_void_p:
        """The handle of the GPU's MIG device ``index``; NVML refuses where none exists."""
        mig = ctypes.c_void_p()
        self._call("nvmlDeviceGetMigDeviceHandleByIndex", handle, ctypes.c_uint(index), ctypes.byref(mig))
        return mig

    def _call(self, function: str, *arguments: object) -> None:
        try:
            entry = getattr(self._library, function)
        except AttributeError:  # a driver older than the function
            raise NvmlError(function, _FUNCTION_NOT_FOUND) from None
        code = entry(*arguments)
        if code != 0:
            raise NvmlError(function, code)

    def _number(self, function: str, *arguments: object) -> int:
        number = ctypes.c_uint()
        self._call(function, *arguments, ctypes.byref(number))
        return number.value

    def _text(self, function: str, *arguments: object) -> str:
        buffer = ctypes.create_string_buffer(_TEXT_BYTES)
        self._call(function, *arguments, buffer, ctypes.c_uint(_TEXT_BYTES))
        return buffer.value.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, or one MIG device of a GPU, as NVML describes it."""

    uuid: str
    name: str
    capability: tuple[int, int]
    memory_bytes: int | None
    pci: tuple[int, int, int]
    mig_enabled: bool = False
    migs: tuple[Gpu, ...] = ()

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Gpu:
        """The GPU that ``dataclasses.asdict`` made ``data`` of."""
        major, minor = data["capability"]
        domain, bus, device = data["pci"]
        migs = tuple(map(cls.from_json, data["migs"]))
        return cls(**{**data, "capability": (major, minor), "pci": (domain, bus, device), "migs": migs})


@dataclass(frozen=True, slots=True)
class Inventory:
    """What NVML knows of: the driver's version, and every GPU in PCI order."""

    driver: str | None = None
    gpus: tuple[Gpu, ...] = ()

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Inventory:
        """The inventory that ``dataclasses.asdict`` made ``data`` of."""
        return cls(data["driver"], tuple(map(Gpu.from_json, data["gpus"])))


def take_inventory(library: Callable[[], Any | None]) -> Inventory:
    """What NVML knows of; nothing without one, and nothing where it fails as a whole, which the log then has."""
    try:
        if (loaded := library()) is None:
            return Inventory()
        with Nvml(loaded) as nvml:
            return Inventory(_or_none(nvml.driver), _gpus(nvml))
    except Exception:  # noqa: BLE001 - a broken driver must not stop a program that may not even use the GPU
        _LOG.debug("NVIDIA devices could not be found", exc_info=True)
        return Inventory()


def _gpus(nvml: Nvml) -> tuple[Gpu, ...]:
    """Every GPU that NVML can describe, in PCI order."""
    found: list[Gpu] = []
    for index in range(nvml.count()):
        try:
            found.append(_gpu(nvml, nvml.handle(index), index))
        except NvmlError as error:
            # Lost from the bus, or not this container's.
            _LOG.debug("NVIDIA GPU %d is left out: %s", index, error)
    return tuple(sorted(found, key=lambda gpu: gpu.pci))


def _gpu(nvml: Nvml, handle: ctypes.c_void_p, index: int) -> Gpu:
    capability = nvml.compute_capability(handle)
    pci = _or_none(lambda: nvml.pci(handle)) or (0, 0, index)
    mig_enabled = bool(_or_none(lambda: nvml.mig_enabled(handle)))
    migs: list[Gpu] = []
    for at in range(nvml.mig_count(handle)) if mig_enabled else ():
        try:
            mig = nvml.mig_handle(handle, at)
            migs.append(Gpu(nvml.uuid(mig), nvml.name(mig), capability, _memory(nvml, mig), pci))
        except NvmlError as error:
            _LOG.debug("NVIDIA GPU %d has no MIG device %d: %s", index, at, error)
    return Gpu(nvml.uuid(handle), nvml.name(handle), capability, _memory(nvml, handle), pci, mig_enabled, tuple(migs))


def _memory(nvml: Nvml, handle: ctypes.c_void_p) -> int | None:
    return _or_none(lambda: nvml.memory_bytes(handle))


def _or_none(ask: Callable[[], T]) -> T | None:
    """What ``ask`` returns, or None when NVML does not know: a fact that a device can do without."""
    try:
        return ask()
    except NvmlError as error:
        _LOG.debug("%s", error)
        return None


if __name__ == "__main__":
    if hasattr(signal, "setitimer"):  # who asked may be gone by then
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, float(sys.argv[1]))
    sys.stdout.write(json.dumps(asdict(take_inventory(load))))
