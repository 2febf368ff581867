"""The part of NVML, NVIDIA's management library, that finds devices; through ctypes, without a CUDA context.

Source: NVML API Reference Guide (nvml.h); names, buffer sizes and structures are its own.
"""

from __future__ import annotations

import ctypes
import logging
import sys
from types import TracebackType
from typing import Any

_LOG = logging.getLogger("portakernel")

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
