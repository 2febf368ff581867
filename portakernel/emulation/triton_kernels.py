"""Launches of Triton kernels in the emulator: through Triton's own JIT for the target, up to the launch."""
# pyright: reportPrivateUsage=false
# The active driver has no public setter that gives the old one back (triton 3.6 to 3.9).

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
import triton
from triton import runtime

from portakernel.claims.capability import CannotRun, ReasonCode, Rejection
from portakernel.emulation.arch import ARCHS
from portakernel.emulation.errors import EmulationError
from portakernel.emulation.program import program
from portakernel.tensors.diversion import diverted
from portakernel.triton_launch import fingerprint
from portakernel.triton_launch.cache_folder import FOLDER
from portakernel.triton_launch.descriptors import is_descriptor, tensor_of
from portakernel.triton_launch.launch import hash_helpers, with_options
from portakernel.triton_launch.offline import MULTIPROCESSORS, PretendedDriver, gpu_target
from portakernel.triton_launch.plain import bound, taking_plain_launches
from portakernel.triton_launch.processor import Processor, pretending
from portakernel.words.target import Target

if TYPE_CHECKING:
    from portakernel.emulation.session import Session

# The active driver is the whole process's.
_COMPILING = threading.Lock()


@contextmanager
def taking_triton_launches(session: Session) -> Iterator[None]:
    """Within this context, this thread's launches of Triton kernels go to ``session``; CPU tensors are its target's.

    Raises:
        CannotRun: there is no directory for what Triton compiles.
    """
    if (rejection := FOLDER.settle()) is not None:
        raise CannotRun(rejection)
    fingerprint.remember()
    gpu = gpu_target(session.target)

    def take_plain(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], meta: Mapping[str, Any]) -> None:
        _launch(session, kernel, grid, args, meta)

    def take(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], meta: Mapping[str, Any]) -> None:
        _launch(session, kernel, grid, args, with_options(meta))

    processor = Processor(session.target.arch, MULTIPROCESSORS, gpu.warp_size)
    with pretending(processor, take), diverted(take), taking_plain_launches(take_plain):
        yield


def _launch(
    session: Session, kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], meta: Mapping[str, Any]
) -> None:
    compiled = _compiled(session.target, kernel, grid, args, meta)
    known, arch = compiled.metadata, ARCHS[session.target.arch]
    if known.shared > arch.lds_bytes:
        text = f"compiled, {kernel.__name__} needs {known.shared} bytes of shared memory; the device has"
        raise CannotRun(Rejection(ReasonCode.SHARED_MEMORY, f"{text} {arch.lds_bytes}"))
    if known.launch_cooperative_grid:
        raise EmulationError(
            f"Triton kernel {kernel.__name__} is launched cooperatively: its workgroups wait for each other, and the "
            "emulator runs them one after the other"
        )
    full = (*grid, 1, 1)[:3]
    if 0 in full:  # Triton's launchers then launch nothing (triton 3.6 to 3.9)
        return
    code = compiled.asm["hsaco"]
    given, names = _given(kernel, compiled, args, meta)
    # behind the kernel's own arguments, memory that the compiler asked for
    expected = sum(not one.hidden for one in program(code, arch.name).loaded.kernel(known.name).arguments)
    scratch = [_scratch(known, kind, full) for kind in ("global", "profile")]
    given += scratch[: max(0, expected - len(given))]
    label = f"{kernel.__module__.rpartition('.')[2]}.{kernel.__name__}"
    block = (known.num_warps * known.warp_size,)
    session.launch(label, code, known.name, full, block, given, names=names, dynamic_lds=known.shared)


def _compiled(target: Target, kernel: Any, grid: Any, args: tuple[Any, ...], meta: Mapping[str, Any]) -> Any:
    if not isinstance(kernel, triton.JITFunction):
        raise EmulationError(
            f"Triton kernel {kernel.__name__} is interpreted, not compiled, under TRITON_INTERPRET=1; unset it"
        )
    drivers: Any = runtime.driver
    with _COMPILING:
        active = drivers._active
        drivers._active = _driver(target)
        try:
            hash_helpers(kernel)
            return kernel.warmup(*args, grid=grid, **meta)
        finally:
            drivers._active = active


@cache
def _driver(target: Target) -> PretendedDriver:
    """One for a target, so that a process compiles each kernel once for it."""
    return PretendedDriver(gpu_target(target))


def _given(kernel: Any, compiled: Any, args: tuple[Any, ...], meta: Mapping[str, Any]) -> tuple[list[Any], list[str]]:
    """The arguments that are there at run time, and their names: all that Triton has not compiled in."""
    signature: Mapping[str, Any] = compiled.src.signature
    given: list[Any] = []
    names: list[str] = []
    for name, value in bound(kernel, args, meta).items():
        _expand(name, value, signature[name], given, names)
    return given, names


def _expand(name: str, value: Any, kind: Any, given: list[Any], names: list[str]) -> None:
    if kind == "constexpr":
        return
    if isinstance(kind, tuple):  # a tuple of arguments
        for place, (part, of) in enumerate(zip(value, kind, strict=True)):
            _expand(f"{name}[{place}]", part, of, given, names)
        return
    if is_descriptor(type(value)):
        parts = _descriptor(value)
        given += parts
        names += [name] * len(parts)
        return
    given.append(tensor_of(value))
    names.append(name)


def _descriptor(value: Any) -> list[Any]:
    """What a launcher passes for a descriptor, where the hardware has none of its own (triton 3.6 to 3.9)."""
    sizes = [*value.shape, *value.strides]
    rounds = [value.round_f32_to_tf32] if hasattr(value, "round_f32_to_tf32") else []
    return [value.base, *sizes, value.padding == "nan", *rounds, *sizes]


def _scratch(known: Any, kind: str, grid: Sequence[int]) -> torch.Tensor | None:
    size = getattr(known, f"{kind}_scratch_size", 0) or 0
    return torch.empty(size * grid[0] * grid[1] * grid[2], dtype=torch.uint8) if size else None
