"""Compiled kernels launched without Triton's binder: found in one look-up by the facts that Triton specialises for.

Triton's own launch binds arguments, asks each for its specialisation, makes a string of it all and looks that up. Here
the facts are read by code generated for the types of the arguments, and the compiled kernel's C launcher is called with
addresses.

What Triton specialises a kernel for (3.6 to 3.9): of a tensor its dtype and whether its address is divisible by 16 (on
AMD also whether its memory spans less than 2 GiB), of a tensor descriptor dtype and block (in Gluon its layout too),
of an integer its width, whether it is 1 and whether 16 divides it, of anything else its type; all compile-time values
and options. Those last are the same for all that a ``Held`` holds; the key has the rest and the device. What the
environment says (TRITON_DEBUG) holds from a kernel's first launch on.
"""

# pyright: reportPrivateUsage=false
# The current stream's handle has a public name, which takes 3 µs more (torch 2.11).

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor
from triton import knobs

from portakernel.calling.fast.generated import define
from portakernel.host.locks import make_lock
from portakernel.triton_launch.descriptors import Encoder, encoded, is_descriptor, tensor_of, unwrapped
from portakernel.triton_launch.descriptors import facts as descriptor_facts
from portakernel.triton_launch.interpreter import is_interpreting

_INT32 = 1 << 31
# A key table that has grown beyond this many kernels starts anew: sizes are never in a key, so that none comes near.
_MOST_KERNELS = 4096


@dataclass(frozen=True, slots=True)
class Launching:
    """How a compiled kernel is launched: what is called, and what that takes before the kernel's own arguments.

    ``encoders`` make of each tensor descriptor what is passed for it; where there are none, it is passed itself.
    """

    call: Any
    settings: tuple[Any, ...]
    encoders: tuple[Encoder, ...] = ()


def _by_c_launcher(run: Any, packed: Any) -> Launching:
    """A kernel of triton 3.6: its C function, which takes the object's own settings and no scratch memory."""
    settings = run.launch_cooperative_grid, run.launch_pdl, None, None, packed, None, None, None
    launch, encoders = unwrapped(run.launch)
    return Launching(launch, settings, encoders)


def _by_launcher(run: Any, packed: Any) -> Launching:
    """The launcher object, whose call is the same in all known versions."""
    return Launching(run, (packed, None, None, None))


# By version and the launcher's class, how it is launched; the settings end with metadata and hooks, of which there are
# none. Any other is launched by Triton itself.
_KNOWN: Mapping[tuple[str, str], Callable[[Any, Any], Launching]] = {
    ("3.6", "CudaLauncher"): _by_c_launcher,
    ("3.6", "HIPLauncher"): _by_launcher,
    ("3.9", "CudaLauncher"): _by_launcher,
    ("3.9", "HIPLauncher"): _by_launcher,
}
_VERSION = ".".join(triton.__version__.split(".")[:2])


def _needs_scratch(run: Any) -> bool:
    return any(getattr(run, f"{kind}_scratch_size", None) for kind in ("global", "profile"))


def launching_of(compiled: Any) -> Launching | None:
    """How a compiled kernel is launched without Triton; None where only Triton knows.

    Kernels that need scratch memory are left to Triton too: it is allocated anew for each launch.
    """
    run = compiled.run
    made = _KNOWN.get((_VERSION, type(run).__name__))
    if made is None or _needs_scratch(run):
        return None
    return made(run, compiled.packed_metadata)


class Held:
    """The compiled kernels of one jit function with certain compile-time values and options.

    ``launch(grid, *args)`` runs the one for these arguments, over a grid of two dimensions; where none is held, and
    where launches are somebody else's, ``miss(held, grid, args)`` does.
    """

    def __init__(
        self, kernel: Any, meta: Mapping[str, Any], miss: Callable[[Held, Any, tuple[Any, ...]], None]
    ) -> None:
        self.kernel, self.meta, self._miss = kernel, meta, miss
        self._kernels: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        # of each argument, the types that were given so far
        self._kinds: list[set[type]] = []
        self._key: Callable[..., tuple[Any, ...]] | None = None
        self.launch: Callable[..., None] = self._first
        self._lock = make_lock()

    def watched(self) -> bool:
        """Whether somebody watches launches (Triton's profiler does), who has to be told of each by Triton."""
        runtime = knobs.runtime
        return bool(runtime.launch_enter_hook.calls or runtime.launch_exit_hook.calls or self.kernel.pre_run_hooks)

    def hold(self, compiled: Any, args: tuple[Any, ...]) -> None:
        """Keeps what Triton compiled and launched for these arguments, where it can be launched without Triton."""
        launching = launching_of(compiled) if tensor_of(args[0]).device.type != "cpu" else None
        if launching is None:
            return
        with self._lock:
            if any(map(_is_mixed, self._widened(args))):
                return
            key = self.key(args, launching)
            if len(self._kernels) >= _MOST_KERNELS:
                self._kernels.clear()
            # the compiled kernel itself is kept, because its module goes with it
            more = (*launching.settings, *launching.encoders)
            self._kernels[key] = launching.call, compiled.function, *more, compiled

    def _widened(self, args: tuple[Any, ...]) -> list[set[type]]:
        """Of each argument, the types that were given so far, with these."""
        kinds = self._kinds or [set[type]() for _ in args]
        return [known | {_kind(arg)} for known, arg in zip(kinds, args, strict=True)]

    def key(self, args: tuple[Any, ...], launching: Launching | None = None) -> tuple[Any, ...]:
        """What Triton specialises for, of these arguments; from now on such types are expected."""
        wider = self._widened(args)
        if wider != self._kinds or self._key is None:
            self._kinds = wider
            self._kernels = {}
            self._key, self.launch = self._generated(wider, args, launching or Launching(None, ()))
        return self._key(*args)

    def _first(self, grid: tuple[int, int], *args: Any) -> None:
        self._miss(self, grid, args)

    def _generated(
        self, kinds: Sequence[set[type]], args: tuple[Any, ...], launching: Launching
    ) -> tuple[Callable[..., tuple[Any, ...]], Callable[..., None]]:
        """The key of arguments of these types, and their launch; for others, no key, or one that is not held."""
        names = [f"a{place}" for place in range(len(kinds))]
        addresses, facts, passed = _specialised(names, kinds, args, self.kernel.params)
        described = [place for place, types in enumerate(kinds) if any(map(is_descriptor, types))]
        for place, encoder in zip(described, range(len(launching.encoders)), strict=False):
            passed[place] = encoded(names[place], f"e{encoder}")
        # the launcher takes compile-time values too, and ignores them
        passed += ["None"] * (len(self.kernel.params) - len(kinds))
        first = f"{names[0]}.base" if 0 in described else names[0]
        given, head = ", ".join(names), "; ".join([f"device = {first}.get_device()", *addresses])
        key, more = f"(device, {', '.join(facts)})", "".join(f" s{place}," for place in range(len(launching.settings)))
        kept = more + "".join(f" e{place}," for place in range(len(launching.encoders)))
        source = f"""\
def key({given}):
    {head}
    return {key}

def launch(grid, {given}):
    if is_interpreting() or runtime.launch_enter_hook.calls or runtime.launch_exit_hook.calls or kernel.pre_run_hooks:
        return miss(held, grid, ({given},))
    try:
        {head}
        found = kernels.get({key})
    except (AttributeError, TypeError):
        found = None  # another type than any before
    if found is None:
        return miss(held, grid, ({given},))
    call, function,{kept} _ = found
    x, y = grid
    call(x, y, 1, stream(device), function,{more} {", ".join(passed)})
"""
        scope: dict[str, Any] = {
            "held": self,
            "miss": self._miss,
            "kernels": self._kernels,
            "kernel": self.kernel,
            "runtime": knobs.runtime,
            "is_interpreting": is_interpreting,
            "unusual": _unusual,
            "stream": getattr(torch._C, "_cuda_getCurrentRawStream", None),
        }
        made = define(source, "launch", f"launch of {self.kernel.__name__}", scope)
        return made.__globals__["key"], made


def _specialised(
    names: Sequence[str], kinds: Sequence[set[type]], args: Sequence[Any], parameters: Sequence[Any]
) -> tuple[list[str], list[str], list[str]]:
    """Statements that take addresses, the facts that Triton specialises for, and what a launcher is passed, as source.

    Facts that are as they usually are (``usual``, of these arguments) are asked for together, and one by one where not
    all of them are.
    """
    addresses, facts, passed = list[str](), list[str](), list[str]()
    usual: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for name, types, arg, parameter in zip(names, kinds, args, parameters, strict=False):
        special = not parameter.do_not_specialize
        passed.append(f"p{name}" if Tensor in types else name)
        absent = type(None) in types
        if Tensor in types:
            addresses.append(f"p{name} = {f'None if {name} is None else ' if absent else ''}{name}.data_ptr()")
            asked = [f"{name}.dtype"]
            if torch.version.hip:
                asked.append(f"{name}.untyped_storage().size() < {_INT32}")
            if special and not parameter.do_not_specialize_on_alignment:
                aligned = f"p{name} & 15 == 0"
                if absent:
                    asked.append(aligned)
                else:
                    usual.setdefault((" | ", "({}) & 15 == 0"), []).append((f"p{name}", aligned))
        elif int in types and special:
            asked = [f"{name} & 15 == 0 if 1 < {name} < {_INT32} else 'one' if {name} == 1 else unusual({name})"]
            if not absent:
                even = " | ", f"(even := {{}}) & 15 == 0 and 0 <= even < {_INT32}"
                usual.setdefault((" == ", "{} == 1") if arg == 1 else even, []).append((name, asked.pop()))
        elif int in types:
            asked = [f"{-_INT32} <= {name} < {_INT32}"]
        elif float in types:
            asked = [f"type({name}) is float"]
        elif types == {type(None)}:
            asked = []
        elif described := [kind for kind in types if is_descriptor(kind)]:
            asked = descriptor_facts(name, described[0])
        else:
            asked = [name]  # a dtype, a bool, another function: what it is
        if absent:
            asked = [f"{name} is None or ({', '.join(asked)},)" if asked else f"{name} is None"]
        facts += asked
    for (joint, form), members in usual.items():
        together = form.format(joint.join(member for member, _ in members))
        facts.append(f"{together} or ({', '.join(fact for _, fact in members)},)")
    return addresses, facts, passed


def _unusual(number: int) -> tuple[bool, bool]:
    """What Triton specialises for in a number that is below 1, or too large for 32 bits."""
    return number & 15 == 0, -_INT32 <= number < _INT32


def _is_mixed(types: set[type]) -> bool:
    """Whether no fact tells the types of an argument apart, or one way of passing them does not do for all."""
    given = types - {type(None)}
    return len(given) > 1 or (len(types) > 1 and any(map(is_descriptor, given)))


def _kind(argument: Any) -> type:
    """Its type, tensors of all classes being one."""
    return Tensor if isinstance(argument, Tensor) else type(argument)
