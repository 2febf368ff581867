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
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton import knobs

from portakernel.calling.fast.generated import define
from portakernel.host.locks import make_lock
from portakernel.tensors.diversion import diversion
from portakernel.triton_launch.descriptors import (
    THREAD,
    Encoder,
    encoded,
    enter_context,
    is_descriptor,
    tensor_of,
    unwrapped,
)
from portakernel.triton_launch.descriptors import facts as descriptor_facts

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
    """The launch of a compiled kernel without Triton; None where only Triton knows.

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
        """Whether somebody watches launches (Triton's profiler does): then Triton itself has to launch."""
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
        """The types of each argument that were given so far, with these."""
        kinds = self._kinds or [set[type]() for _ in args]
        return [known | {_kind(arg)} for known, arg in zip(kinds, args, strict=True)]

    def key(self, args: tuple[Any, ...], launching: Launching | None = None) -> tuple[Any, ...]:
        """The key of these arguments, of what Triton specialises for; from now on such types are expected."""
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
        entering = "thread.entered or enter_context()" if described else ""
        source = f"""\
def key({given}):
    {head}
    return {key}

def launch(grid, {given}):
    if diversion() or runtime.launch_enter_hook.calls or runtime.launch_exit_hook.calls or kernel.pre_run_hooks:
        return miss(held, grid, ({given},))
    try:
        {head}
        compiled = kernels.get({key})
    except (AttributeError, TypeError):
        compiled = None  # another type than any before
    if compiled is None:
        return miss(held, grid, ({given},))
    call, function,{kept} _ = compiled
    x, y = grid
    {entering}
    call(x, y, 1, stream(device), function,{more} {", ".join(passed)})
"""
        scope: dict[str, Any] = {
            "held": self,
            "miss": self._miss,
            "kernels": self._kernels,
            "kernel": self.kernel,
            "runtime": knobs.runtime,
            "diversion": diversion,
            "unusual": _unusual,
            "thread": THREAD,
            "enter_context": enter_context,
            "stream": getattr(torch._C, "_cuda_getCurrentRawStream", None),
        }
        made = define(source, "launch", f"launch of {self.kernel.__name__}", scope)
        return made.__globals__["key"], made


class _Usual(NamedTuple):
    """One expression for the usual facts of several arguments: their members, joined, in a form."""

    joint: str
    form: str

    def source(self, members: Sequence[_Fact]) -> str:
        """Source of a part of the key: true when all facts are as usual, and else each of them."""
        joined = self.joint.join(fact.member for fact in members)
        return f"{self.form.format(joined)} or ({', '.join(fact.text for fact in members)},)"


_ALIGNED = _Usual(" | ", "({}) & 15 == 0")
_ONE = _Usual(" == ", "{} == 1")
_EVEN = _Usual(" | ", f"(even := {{}}) & 15 == 0 and 0 <= even < {_INT32}")


@dataclass(frozen=True, slots=True)
class _Fact:
    """A fact about an argument as source: its own ``text``, and the ``member`` that it is of a ``usual`` expression."""

    text: str
    member: str
    usual: _Usual


def _specialised(
    names: Sequence[str], kinds: Sequence[set[type]], args: Sequence[Any], parameters: Sequence[Any]
) -> tuple[list[str], list[str], list[str]]:
    """Statements that take addresses, the facts that Triton specialises for, and what a launcher is passed, as source.

    Facts that are as they usually are (``usual``, of these arguments) are asked for together, and one by one where not
    all of them are.
    """
    addresses, facts, passed = list[str](), list[str](), list[str]()
    together: dict[_Usual, list[_Fact]] = {}
    for name, types, arg, parameter in zip(names, kinds, args, parameters, strict=False):
        absent = type(None) in types
        if Tensor in types:
            addresses.append(f"p{name} = {f'None if {name} is None else ' if absent else ''}{name}.data_ptr()")
        passed.append(f"p{name}" if Tensor in types else name)
        alone, shared = _facts_alone(name, types, parameter), _fact_shared(name, types, arg, parameter)
        if shared is not None and not absent:
            together.setdefault(shared.usual, []).append(shared)
        elif shared is not None:
            alone.append(shared.text)
        if absent:
            alone = [f"{name} is None or ({', '.join(alone)},)" if alone else f"{name} is None"]
        facts += alone
    facts += [usual.source(members) for usual, members in together.items()]
    return addresses, facts, passed


def _facts_alone(name: str, types: set[type], parameter: Any) -> list[str]:
    """The facts about an argument that are asked of it alone, where it is there."""
    if Tensor in types:
        small = [f"{name}.untyped_storage().size() < {_INT32}"] if torch.version.hip else []
        return [f"{name}.dtype", *small]
    if int in types:
        return [f"{-_INT32} <= {name} < {_INT32}"] if parameter.do_not_specialize else []
    if float in types:
        return [f"type({name}) is float"]
    if (described := next(filter(is_descriptor, types), None)) is not None:
        return descriptor_facts(name, described)
    # of a dtype, a bool or another function, what it is
    return [] if types == {type(None)} else [name]


def _fact_shared(name: str, types: set[type], arg: Any, parameter: Any) -> _Fact | None:
    """The fact about an argument that is usually the same of several, if it has one that Triton specialises for."""
    if parameter.do_not_specialize:
        return None
    if Tensor in types:
        aligned = _Fact(f"p{name} & 15 == 0", f"p{name}", _ALIGNED)
        return None if parameter.do_not_specialize_on_alignment else aligned
    if int in types:
        text = f"{name} & 15 == 0 if 1 < {name} < {_INT32} else 'one' if {name} == 1 else unusual({name})"
        return _Fact(text, name, _ONE if arg == 1 else _EVEN)
    return None


def _unusual(number: int) -> tuple[bool, bool]:
    """The facts that Triton specialises for of a number below 1, or too large for 32 bits."""
    return number & 15 == 0, -_INT32 <= number < _INT32


def _is_mixed(types: set[type]) -> bool:
    """Whether no fact tells the types of an argument apart, or one way of passing them does not do for all."""
    given = types - {type(None)}
    return len(given) > 1 or (len(types) > 1 and any(map(is_descriptor, given)))


def _kind(argument: Any) -> type:
    """The argument's type; tensors of all classes count as one."""
    return Tensor if isinstance(argument, Tensor) else type(argument)
