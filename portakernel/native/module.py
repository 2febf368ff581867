"""Code objects loaded on a device, and their kernels launched on torch's current stream.

CuPy loads them, with CUDA and with ROCm, and passes launches on to the driver. Arguments are packed by one call of
``struct`` into memory that this thread alone uses, at the offsets at which the kernel reads them.
"""

# pyright: reportPrivateUsage=false
# The current stream's handle has a public name, which takes 3 µs more (torch 2.11).

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal

from portakernel.calling.fast.generated import define
from portakernel.claims.capability import CannotRun, ReasonCode, Rejection
from portakernel.errors import ArgumentValueError
from portakernel.native.code_object import CodeObject, KernelFacts
from portakernel.native.driver import driver
from portakernel.native.place import current_device, device_target

# What a kernel takes, in C's words: `pointer` is a tensor, None (a null pointer) or an address.
Scalar = Literal["pointer", "int32", "uint32", "int64", "uint64", "float32", "float64"]
# (bytes, alignment) is a structure that is passed by value, given as bytes of that length.
Parameter = Scalar | tuple[int, int]

_FORMATS: dict[str, tuple[str, int]] = {
    "pointer": ("Q", 8),
    "int32": ("i", 4),
    "uint32": ("I", 4),
    "int64": ("q", 8),
    "uint64": ("Q", 8),
    "float32": ("f", 4),
    "float64": ("d", 8),
}
# What every kernel of NVIDIA's may use; for more the driver has to be asked, kernel by kernel.
_USUAL_SHARED_BYTES = 48 << 10
_INVALID_CONTEXT = 201


class Layout:
    """Where a kernel's parameters lie: a ``struct`` format, and their offsets and sizes."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self.places: list[tuple[int, int]] = []
        form, end = "<", 0
        for parameter in parameters:
            if isinstance(parameter, tuple):
                size, alignment = parameter
                code = f"{size}s"
            elif parameter in _FORMATS:
                code, size = _FORMATS[parameter]
                alignment = size
            else:
                known = f"{', '.join(_FORMATS)} and (bytes, alignment)"
                raise ArgumentValueError(f"a kernel's parameter is {parameter!r}; accepted are {known}")
            padding = -end % alignment
            form += (f"{padding}x" if padding else "") + code
            self.places.append((end + padding, size))
            end += padding + size
        self.packer = struct.Struct(form)


def layout_of(facts: KernelFacts, parameters: Sequence[Parameter]) -> Layout:
    """Where the parameters lie of a kernel that was compiled.

    Raises:
        ArgumentValueError: its parameters are not of these sizes.
    """
    layout = Layout(parameters)
    if facts.parameters and tuple(layout.places) != facts.parameters:
        theirs = ", ".join(f"{size} bytes at {at}" for at, size in facts.parameters)
        ours = ", ".join(f"{parameter} at {at}" for parameter, (at, _) in zip(parameters, layout.places, strict=True))
        raise ArgumentValueError(f"kernel {facts.name} takes {theirs}; its parameters are declared as {ours}")
    return layout


class _Memory(threading.local):
    """One thread's packed arguments, and the list of their addresses that the driver reads during a launch."""

    def __init__(self, layout: Layout) -> None:
        self.packed = ctypes.create_string_buffer(max(1, layout.packer.size))
        begin = ctypes.addressof(self.packed)
        self._list = (ctypes.c_void_p * max(1, len(layout.places)))(*(begin + at for at, _ in layout.places))
        self.addresses = ctypes.addressof(self._list)


class Function:
    """One kernel on one device: called, it is launched on torch's current stream there.

    ``launch`` is the same without the call of a method.
    """

    def __init__(self, module: Module, facts: KernelFacts, parameters: Sequence[Parameter], handle: int) -> None:
        self.facts, self.module = facts, module  # the module's code is the function's
        layout = layout_of(facts, parameters)
        self.launch = _launch(module, handle, facts, parameters, layout)

    def __call__(self, grid: Sequence[int], block: Sequence[int], shared_bytes: int, *args: Any) -> None:
        """Launches ``grid`` blocks of ``block`` threads (one to three numbers each).

        ``shared_bytes`` is dynamic shared memory. ``args`` are the kernel's arguments, as its parameters say.
        """
        self.launch(grid, block, shared_bytes, *args)


def _launch(
    module: Module, handle: int, facts: KernelFacts, parameters: Sequence[Parameter], layout: Layout
) -> Callable[..., None]:
    names = [f"a{place}" for place in range(len(parameters))]
    packed = [
        f"{a} if type({a}) is int else 0 if {a} is None else {a}.data_ptr()" if parameter == "pointer" else a
        for a, parameter in zip(names, parameters, strict=True)
    ]
    # the stream before the arguments: nothing stands between packing them and the launch that reads them
    source = f"""\
def launch({", ".join(["grid", "block", "shared_bytes", *names])}):
    x, y, z = grid if len(grid) == 3 else (*grid, 1, 1)[:3]
    bx, by, bz = block if len(block) == 3 else (*block, 1, 1)[:3]
    where = stream(device)
    pack({", ".join(["memory.packed", "0", *packed])})
    try:
        run(function, x, y, z, bx, by, bz, shared_bytes, where, memory.addresses, 0)
    except DriverError as error:
        again(error, x, y, z, bx, by, bz, shared_bytes, where)
"""
    driver, memory = module.driver, _Memory(layout)

    def again(error: Any, *how: int) -> None:
        """A thread that has not used the device has no context: it gets one, and nothing was launched before."""
        if getattr(error, "status", None) != _INVALID_CONTEXT:
            raise error
        driver.bind(module.device)
        driver.launch(handle, *how, memory.addresses, 0)

    scope = {
        "function": handle,
        "device": module.device,
        "memory": memory,
        "pack": layout.packer.pack_into,
        "run": driver.launch,
        "stream": driver.stream,
        "DriverError": driver.error,
        "again": again,
    }
    made: Callable[..., None] = define(source, "launch", f"launch of {facts.name}", scope)
    return made


class Module:
    """A code object in a device's memory."""

    def __init__(self, code: CodeObject, device: int, driver: Any) -> None:
        self.code, self.device, self.driver = code, device, driver
        driver.bind(device)
        try:
            self._loaded = driver.load(code.code)
        except driver.error as error:
            text = f"the driver of device {device} refuses code that {code.compiler} made for {code.target}: {error};"
            remedy = "update the driver, or use a compiler of its version"
            raise CannotRun(Rejection(ReasonCode.PROBE_FAILED, f"{text} {remedy}")) from error

    def function(self, name: str, parameters: Sequence[Parameter], *, most_shared_bytes: int = 0) -> Function:
        """The kernel that was asked for as ``name``; ``most_shared_bytes``: of dynamic shared memory, at any launch.

        Raises:
            CannotRun: the device does not have so much shared memory.
            KeyError: there is no such kernel.
            ArgumentValueError: its parameters are not of these sizes.
        """
        facts = self.code.kernel(name)
        handle = self.driver.find(self._loaded, facts.symbol)
        if most_shared_bytes > _USUAL_SHARED_BYTES and self.code.target.vendor == "nvidia":
            try:
                self.driver.allow_shared(handle, most_shared_bytes)
            except self.driver.error as error:
                text = (
                    f"{name} needs {most_shared_bytes} bytes of shared memory beside {facts.shared_bytes} of its own;"
                )
                text += f" {self.code.target} does not have that much ({error})"
                raise CannotRun(Rejection(ReasonCode.SHARED_MEMORY, text)) from error
        return Function(self, facts, parameters, handle)


def load(code: CodeObject, device: int | None = None) -> Module:
    """``code`` on a device of torch's (its index; the current one), whose context has to exist.

    Raises:
        CannotRun: it is for another architecture, CuPy is missing, or the driver refuses it.
    """
    where = current_device() if device is None else device
    check_target(code, where)
    return Module(code, where, driver())


def check_target(code: CodeObject, device: int) -> None:
    """Refuses code for another architecture than the device's.

    Raises:
        CannotRun: it is.
    """
    here = device_target(device)
    if code.target != here:
        text = f"the code is for {code.target}, and device {device} is {here}; build it for {here}"
        raise CannotRun(Rejection(ReasonCode.ARCH, text, "target"))
