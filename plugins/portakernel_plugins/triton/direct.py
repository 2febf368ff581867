"""Compiled kernels launched without Triton's binder: found in one look-up by the facts that Triton specialises for.

Triton's own launch binds arguments, asks each for its specialisation, makes a string of it all and looks that up. Here
the facts are read by code generated for the types of the arguments, and the compiled kernel's C launcher is called with
addresses.

What Triton specialises a kernel for (3.6 to 3.9): of a tensor its dtype and whether its address is divisible by 16 (on
AMD also whether its memory spans less than 2 GiB), of an integer its width, whether it is 1 and whether 16 divides it,
of anything else its type; all compile-time values and options. The key holds that and the device. What the environment
says (TRITON_DEBUG) holds from a kernel's first launch on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import triton
from torch import Tensor
from triton import knobs

_INT32 = 1 << 31
# A key table that has grown beyond this many kernels starts anew: sizes are never in a key, so that none comes near.
_MOST_KERNELS = 4096


def _by_c_launcher(run: Any, packed: Any) -> tuple[Any, ...]:
    """A kernel of triton 3.6: its C function, which takes the object's own settings and no scratch memory."""
    return run.launch, run.launch_cooperative_grid, run.launch_pdl, None, None, packed, None, None, None


def _by_launcher(run: Any, packed: Any) -> tuple[Any, ...]:
    """The launcher object, whose call is the same in all known versions."""
    return run, packed, None, None, None


# By version and the launcher's class, what to call and what it takes between the function and the kernel's arguments:
# settings, then metadata and hooks, of which there are none. Any other is launched by Triton itself.
_KNOWN: Mapping[tuple[str, str], Callable[[Any, Any], tuple[Any, ...]]] = {
    ("3.6", "CudaLauncher"): _by_c_launcher,
    ("3.6", "HIPLauncher"): _by_launcher,
    ("3.9", "CudaLauncher"): _by_launcher,
    ("3.9", "HIPLauncher"): _by_launcher,
}
_VERSION = ".".join(triton.__version__.split(".")[:2])


def _needs_scratch(run: Any) -> bool:
    return any(getattr(run, f"{kind}_scratch_size", None) for kind in ("global", "profile"))


def callable_of(compiled: Any) -> tuple[Any, ...] | None:
    """What launches a compiled kernel, and the arguments it takes before the kernel's; None where only Triton knows.

    Kernels that need scratch memory are left to Triton too: it is allocated anew for each launch.
    """
    run = compiled.run
    made = _KNOWN.get((_VERSION, type(run).__name__))
    if made is None or _needs_scratch(run):
        return None
    return made(run, compiled.packed_metadata)


def hooks_are_set(kernel: Any) -> bool:
    """Whether somebody watches launches (Triton's profiler does), who has to be told of each by Triton."""
    runtime = knobs.runtime
    return bool(runtime.launch_enter_hook.calls or runtime.launch_exit_hook.calls or kernel.pre_run_hooks)


class Held:
    """One jit function's compiled kernels: ``launch`` looks one up and runs it, and says whether there was one."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self._launches: dict[tuple[type, ...], Callable[..., bool]] = {}
        self._kernels: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        self._keys: dict[tuple[type, ...], Callable[..., tuple[Any, ...]]] = {}

    def launch(self, grid: tuple[int, ...], args: tuple[Any, ...], meta: Mapping[str, Any]) -> bool:
        """Launches the kernel held for such arguments; False where none is."""
        kinds = tuple(map(type, args))
        made = self._launches.get(kinds)
        if made is None:
            made = self._launches[kinds] = self._generated(kinds)
        return made(grid, meta, *args)

    def hold(self, compiled: Any, args: tuple[Any, ...], meta: Mapping[str, Any]) -> None:
        """Keeps what Triton compiled and launched for these arguments, where it can be launched without Triton."""
        found = callable_of(compiled) if args[0].device.type != "cpu" else None
        if found is None:
            return
        if len(self._kernels) >= _MOST_KERNELS:
            self._kernels.clear()
        key = self._keys[tuple(map(type, args))](meta, *args)
        # the compiled kernel itself is kept, because its module goes with it
        self._kernels[key] = found[0], compiled.function, found[1:], compiled

    def _generated(self, kinds: tuple[type, ...]) -> Callable[..., bool]:
        """The launch for arguments of these types, and the key of such arguments."""
        parameters = self.kernel.params
        names = [f"a{place}" for place in range(len(kinds))]
        addresses, facts, passed = list[str](), list[str](), list[str]()
        for name, kind, parameter in zip(names, kinds, parameters, strict=False):
            special = not parameter.do_not_specialize
            if issubclass(kind, Tensor):
                addresses.append(f"p{name} = {name}.data_ptr()")
                facts.append(f"{name}.dtype")
                if special and not parameter.do_not_specialize_on_alignment:
                    facts.append(f"p{name} & 15 == 0")
                if torch.version.hip:
                    facts.append(f"{name}.untyped_storage().size() < {_INT32}")
                passed.append(f"p{name}")
                continue
            if kind is int:
                facts.append(f"{-_INT32} <= {name} < {_INT32}")
                facts += [f"{name} == 1", f"{name} & 15 == 0"] if special else []
            elif kind is not float and kind is not type(None):
                facts.append(name)  # a dtype, a bool, another function: what it is
            passed.append(name)
        # the launcher takes compile-time values too, and ignores them
        constants = ["None"] * (len(parameters) - len(kinds))
        given = ", ".join(names)
        head = "; ".join([f"device = {names[0]}.get_device()", *addresses])
        key = f"({', '.join(['device', *facts, '*meta.values()'])},)"
        source = f"""\
def key(meta, {given}):
    {head}
    return {key}

def launch(grid, meta, {given}):
    {head}
    found = kernels.get({key})
    if found is None:
        return False
    call, function, settings, _ = found
    height = grid[1] if len(grid) == 2 else 1
    call(grid[0], height, 1, stream(device), function, *settings, {", ".join([*passed, *constants])})
    return True
"""
        scope: dict[str, Any] = {
            "kernels": self._kernels,
            "stream": getattr(torch._C, "_cuda_getCurrentRawStream", None),
        }
        exec(compile(source, f"<portakernel: launch of {self.kernel.__name__}>", "exec"), scope)
        self._keys[kinds] = scope["key"]
        launch: Callable[..., bool] = scope["launch"]
        return launch
