"""Compiled kernels launched without Triton's binder: found in one look-up by the facts that Triton specialises for.

Triton's own launch binds arguments, asks each for its specialisation, makes a string of it all and looks that up. Here
the facts are read by code generated for the types of the arguments, and the compiled kernel's C launcher is called with
addresses.

What Triton specialises a kernel for (3.6 to 3.9): of a tensor its dtype and whether its address is divisible by 16 (on
AMD also whether its memory spans less than 2 GiB), of an integer its width, whether it is 1 and whether 16 divides it,
of anything else its type; all compile-time values and options. The key holds that and the device. What the environment
says (TRITON_DEBUG) holds from a kernel's first launch on.
"""

# pyright: reportPrivateUsage=false
# The current stream's handle has a public name, which takes 3 µs more (torch 2.11).

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import triton
from torch import Tensor
from triton import knobs

from portakernel.locks import make_lock

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


class Held:
    """One jit function's compiled kernels: ``launch`` looks one up and runs it, and says whether there was one."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self._kernels: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        # of each argument, the types that were given so far
        self._kinds: list[set[type]] = []
        self._key: Callable[..., tuple[Any, ...]] | None = None
        self.launch: Callable[..., bool] = _never
        self._lock = make_lock()

    def watched(self) -> bool:
        """Whether somebody watches launches (Triton's profiler does), who has to be told of each by Triton."""
        runtime = knobs.runtime
        return bool(runtime.launch_enter_hook.calls or runtime.launch_exit_hook.calls or self.kernel.pre_run_hooks)

    def hold(self, compiled: Any, args: tuple[Any, ...], meta: Mapping[str, Any]) -> None:
        """Keeps what Triton compiled and launched for these arguments, where it can be launched without Triton."""
        found = callable_of(compiled) if args[0].device.type != "cpu" else None
        if found is None:
            return
        with self._lock:
            key = self.key(args, meta)
            if len(self._kernels) >= _MOST_KERNELS:
                self._kernels.clear()
            # the compiled kernel itself is kept, because its module goes with it
            self._kernels[key] = found[0], compiled.function, found[1:], compiled

    def key(self, args: tuple[Any, ...], meta: Mapping[str, Any]) -> tuple[Any, ...]:
        """What Triton specialises for, of these arguments; from now on such types are expected."""
        kinds = self._kinds or [set[type]() for _ in args]
        wider = [known | {_kind(arg)} for known, arg in zip(kinds, args, strict=True)]
        if wider != self._kinds or self._key is None:
            self._kinds = wider
            self._kernels = {}
            self._key, self.launch = self._generated(wider)
        return self._key(meta, *args)

    def _generated(self, kinds: Sequence[set[type]]) -> tuple[Callable[..., tuple[Any, ...]], Callable[..., bool]]:
        """The key of arguments of these types, and their launch; for others, no key, or one that is not held."""
        parameters = self.kernel.params
        names = [f"a{place}" for place in range(len(kinds))]
        lines, facts, passed = [f"device = {names[0]}.get_device()"], list[str](), list[str]()
        for name, types, parameter in zip(names, kinds, parameters, strict=False):
            special = not parameter.do_not_specialize
            asked, sent = list[str](), name
            if Tensor in types:
                absent = f"None if {name} is None else " if type(None) in types else ""
                lines.append(f"p{name} = {absent}{name}.data_ptr()")
                asked.append(f"{name}.dtype")
                if special and not parameter.do_not_specialize_on_alignment:
                    asked.append(f"p{name} & 15 == 0")
                if torch.version.hip:
                    asked.append(f"{name}.untyped_storage().size() < {_INT32}")
                sent = f"p{name}"
            elif int in types:
                usual, one = f"{name} & 15 == 0 if 1 < {name} < {_INT32}", f"'one' if {name} == 1"
                asked.append(
                    f"{usual} else {one} else unusual({name})" if special else f"{-_INT32} <= {name} < {_INT32}"
                )
            elif float in types:
                asked.append(f"type({name}) is float")
            elif type(None) not in types:
                asked.append(name)  # a dtype, a bool, another function: what it is
            if type(None) in types:
                asked = [f"{name} is None or ({', '.join(asked)},)" if asked else f"{name} is None"]
            facts += asked
            passed.append(sent)
        # the launcher takes compile-time values too, and ignores them
        constants = ["None"] * (len(parameters) - len(kinds))
        given, head = ", ".join(names), "; ".join(lines)
        source = f"""\
def key(meta, {given}):
    {head}
    return (device, {", ".join([*facts, "*meta.values()"])},)

def launch(grid, args, meta):
    if runtime.launch_enter_hook.calls or runtime.launch_exit_hook.calls or kernel.pre_run_hooks:
        return False
    {given}, = args
    try:
        {head}
        found = kernels.get((device, {", ".join([*facts, "*meta.values()"])},))
    except (AttributeError, TypeError):
        return False  # another type than any before
    if found is None:
        return False
    call, function, settings, _ = found
    x, y = grid if len(grid) == 2 else (*grid, 1)
    call(x, y, 1, stream(device), function, *settings, {", ".join([*passed, *constants])})
    return True
"""
        scope: dict[str, Any] = {
            "kernels": self._kernels,
            "kernel": self.kernel,
            "runtime": knobs.runtime,
            "unusual": _unusual,
            "stream": getattr(torch._C, "_cuda_getCurrentRawStream", None),
        }
        exec(compile(source, f"<portakernel: launch of {self.kernel.__name__}>", "exec"), scope)
        return scope["key"], scope["launch"]


def _never(*_: Any) -> bool:
    return False


def _unusual(number: int) -> tuple[bool, bool]:
    """What Triton specialises for in a number that is below 1, or too large for 32 bits."""
    return number & 15 == 0, -_INT32 <= number < _INT32


def _kind(argument: Any) -> type:
    """Its type, tensors of all classes being one."""
    return Tensor if isinstance(argument, Tensor) else type(argument)
