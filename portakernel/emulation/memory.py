"""The memory that a kernel may touch: the arguments' tensors, at addresses of the emulator's own."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any

from portakernel.emulation import abi
from portakernel.emulation.errors import EmulationError

# Tensors lie far from each other, so that an access outside of one is not one inside of another.
_FIRST, _STEP = 0x10_0000_0000, 0x1_0000_0000
# What a host does for kernels, by the hidden argument that says where it is asked for: nothing lies there, and the
# engine names who asks (``engine/wave.h``).
_HOST_SERVICES, _SERVICE_STEP = 0x7C00_0000_0000, 0x1_0000_0000
SERVICES = {
    "hidden_hostcall_buffer": "a call of the host, as printf is one",
    "hidden_printf_buffer": "printf",
    "hidden_heap_v1": "memory of the device's heap, as malloc gives it",
    "hidden_default_queue": "a launch by the kernel",
    "hidden_completion_action": "a launch by the kernel",
    "hidden_multigrid_sync_arg": "a cooperative launch, whose workgroups wait for each other",
}
CODE_BASE, KERNARG_BASE, PACKET_BASE = 0x7F00_0000_0000, 0x7E00_0000_0000, 0x7D00_0000_0000


def service_addresses() -> dict[str, int]:
    """For each hidden argument of these the address that it holds."""
    return {kind: _HOST_SERVICES + number * _SERVICE_STEP for number, kind in enumerate(SERVICES)}


def service_at(address: int) -> str:
    """What a host is asked for at an address."""
    number = (address - _HOST_SERVICES) // _SERVICE_STEP
    return tuple(SERVICES.values())[number] if 0 <= number < len(SERVICES) else "a service"


@dataclass(slots=True)
class _Extent:
    """Bytes of one storage that arguments cover."""

    host: int
    size: int
    names: list[str]


@dataclass(slots=True)
class Memory:
    """Regions by the storage that they lie in; ``names`` says for each region whose it is."""

    regions: list[abi.Region] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    _storages: dict[int, tuple[int, int]] = field(default_factory=dict)
    _extents: dict[int, list[_Extent]] = field(default_factory=dict)
    _kept: list[Any] = field(default_factory=list)
    _next: int = _FIRST

    def add_tensor(self, tensor: Any, name: str) -> int:
        """The address of a tensor's first element; of tensors that share memory the addresses agree.

        Raises:
            EmulationError: it is not in this machine's main memory.
        """
        host, first, size, storage, storage_bytes = _extent(tensor, name)
        if not host:  # of a tensor without elements torch gives no address
            return 0
        if storage not in self._storages:
            self._storages[storage] = (self._next, storage)
            self._next += (storage_bytes // _STEP + 2) * _STEP
        base, _ = self._storages[storage]
        self._kept.append(tensor)
        self._extents.setdefault(storage, []).append(_Extent(first, size, [name]))
        return base + host - storage

    def add_bytes(self, base: int, content: bytes | bytearray, name: str, *, writable: bool = False) -> None:
        """Memory of the emulator's own at a fixed address."""
        held = (ctypes.c_uint8 * max(1, len(content))).from_buffer_copy(bytes(content) or b"\0")
        self._kept.append(held)
        self._append(base, len(content), ctypes.addressof(held), name, writable=writable)

    def finish(self) -> ctypes.Array[abi.Region]:
        """The regions as the engine takes them; those of tensors that overlap are one."""
        for storage, extents in self._extents.items():
            base, _ = self._storages[storage]
            joined: list[_Extent] = []
            for extent in sorted(extents, key=lambda one: one.host):
                last = joined[-1] if joined else None
                if last is not None and extent.host < last.host + last.size:
                    last.size = max(last.size, extent.host + extent.size - last.host)
                    last.names += extent.names
                else:
                    joined.append(_Extent(extent.host, extent.size, list(extent.names)))
            for one in joined:
                self._append(base + one.host - storage, one.size, one.host, ", ".join(one.names), writable=True)
        self._extents.clear()
        return (abi.Region * len(self.regions))(*self.regions)

    def _append(self, base: int, size: int, host: int, name: str, *, writable: bool) -> None:
        self.regions.append(abi.Region(base, size, host, 0, int(writable), len(self.names)))
        self.names.append(name)


def _extent(tensor: Any, name: str) -> tuple[int, int, int, int, int]:
    """A tensor's pointer, its lowest byte, the bytes from there to its last one, its storage's pointer and bytes."""
    if hasattr(tensor, "untyped_storage"):
        if tensor.device.type != "cpu":
            raise EmulationError(f"{name} is on {tensor.device}; the emulator takes tensors on the CPU")
        storage = tensor.untyped_storage()
        spans = [(size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
        last = sum(spans) + 1 if tensor.numel() else 0
        pointer = tensor.data_ptr()
        return pointer, pointer, last * tensor.element_size(), storage.data_ptr() or pointer, storage.nbytes()
    if hasattr(tensor, "__array_interface__"):
        pointer = tensor.__array_interface__["data"][0]
        low = sum(min(0, (size - 1) * step) for size, step in zip(tensor.shape, tensor.strides, strict=True))
        high = sum(max(0, (size - 1) * step) for size, step in zip(tensor.shape, tensor.strides, strict=True))
        size = high - low + tensor.itemsize if tensor.size else 0
        return pointer, pointer + low, size, pointer + low, size
    raise EmulationError(f"{name} is a {type(tensor).__name__}: pass a tensor, an array or None for a pointer")
