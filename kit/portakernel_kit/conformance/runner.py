"""Checks the kernels of a plugin or an op against the ops' cases, result by result."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import Any

from portakernel.contracts import contract
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.errors import UnknownNameError
from portakernel.offline.workers import cores
from portakernel.registry.kernel import Kernel
from portakernel_kit.conformance import huge as huge_calls
from portakernel_kit.conformance.drawn.processes import DEFAULT_BUDGET, Budget, Drawing
from portakernel_kit.conformance.drawn.spelling import parse_request
from portakernel_kit.conformance.op_faults import OpFault
from portakernel_kit.conformance.outcome import fault_of_op, result_of
from portakernel_kit.conformance.result import Result
from portakernel_kit.conformance.suite import Suite
from portakernel_kit.conformance.unit_processes import UnitProcesses
from portakernel_kit.conformance.venue import Unavailable, Venue, Where, find_venue

# Where nothing else is asked for: each has a copy of torch, and of what kernels keep.
_MOST_WORKERS = 8

__all__ = ["Result", "again", "check", "drawing", "fresh_seed", "plan", "run", "select_kernels"]


def check(
    dispatcher: Dispatcher,
    *,
    plugin: str | None = None,
    op: str | None = None,
    names: Sequence[str] | None = None,
    device: Where = None,
    seed: int | None = None,
    all_builds: bool = False,
    huge: bool = False,
    workers: int | None = 1,
) -> Iterator[Result]:
    """Every result for the kernels of ``plugin`` and ``op``, of them those with ``names``, as it comes.

    Each kernel runs on ``device`` or on the first device of this machine that its claims cover; where there is none, in
    its plugin's execution mode; where there is no such mode, one skipped result says so. The inputs depend on ``seed``,
    which is fresh when not given, and on nothing that ran before. Kernels that have to be built run a few cases each,
    unless ``all_builds``. With ``huge``, calls with more than 2**31 elements take the place of the ops' cases.

    The cases of a kernel run in this process or, with more than one of ``workers``, in up to so many of their own; with
    None in several, one a core, where their plugin compiles them for a GPU, and in this one elsewhere. They begin as
    spawned processes do: a script that asks for them needs its ``if __name__ == "__main__":``. What has to be built,
    and ``huge``, runs in this process.

    Raises:
        UnknownNameError: there is no such plugin or op.
    """
    seed = fresh_seed() if seed is None else seed
    for kernel in select_kernels(dispatcher, plugin, op, names):
        venue = find_venue(dispatcher, kernel, device)
        many = workers if workers is not None else _many(dispatcher, kernel, venue)
        terms: dict[str, Any] = {"all_builds": all_builds, "huge": huge, "workers": many, "device": device}
        yield from run(dispatcher, kernel, venue, seed=seed, **terms)


def plan(
    dispatcher: Dispatcher,
    *,
    plugin: str | None = None,
    op: str | None = None,
    names: Sequence[str] | None = None,
    device: Where = None,
    seed: int | None = None,
    all_builds: bool = False,
    huge: bool = False,
) -> int:
    """How many cases ``check`` reports: different pairs of ``Result.kernel`` and ``Result.case``; no kernel runs.

    Raises:
        UnknownNameError: there is no such plugin or op.
    """
    count = 0
    for kernel in select_kernels(dispatcher, plugin, op, names):
        venue = find_venue(dispatcher, kernel, device)
        if isinstance(venue, Unavailable):
            count += 1
        elif huge:
            count += huge_calls.cases_reported(kernel, venue)
        else:
            try:
                count += Suite(dispatcher, kernel, venue, seed or 0, all_builds=all_builds).cases_reported()
            except OpFault:
                count += 1
    return count


def run(
    dispatcher: Dispatcher,
    kernel: Kernel,
    venue: Venue | Unavailable,
    *,
    seed: int | None = None,
    all_builds: bool = False,
    huge: bool = False,
    workers: int = 1,
    device: Where = None,
) -> Iterator[Result]:
    """Every result for one kernel at one venue, as it comes; a failed one where the op is at fault, not the kernel.

    With ``workers``, each finds the venue by itself, for ``device``.
    """
    if isinstance(venue, Unavailable):
        yield Result(kernel.name, kernel.op, f"{kernel.op}[*]", "claim", "skipped", venue.reason)
        return
    seed = fresh_seed() if seed is None else seed
    try:
        if huge:
            yield from huge_calls.results(dispatcher, kernel, venue, seed)
            return
        suite = Suite(dispatcher, kernel, venue, seed, all_builds=all_builds)
        if workers > 1 and kernel.build is None:
            yield from UnitProcesses(suite, device, workers).results()
            return
        for unit in suite.units():
            yield from suite.run(unit)
    except OpFault as fault:
        yield result_of(kernel, venue, f"{kernel.op}[*]", fault_of_op(fault))


def _many(dispatcher: Dispatcher, kernel: Kernel, venue: Venue | Unavailable) -> int:
    """How many processes a kernel's cases run in where nobody says it.

    On a GPU each case of a plugin that compiles its kernels takes a core for seconds; elsewhere the start of a process
    takes as long as many cases.
    """
    if isinstance(venue, Venue) and venue.emulator is not None:
        return min(_MOST_WORKERS, cores())
    if isinstance(venue, Unavailable) or venue.mode is not None or venue.torch_device.partition(":")[0] == "cpu":
        return 1
    return min(_MOST_WORKERS, cores()) if dispatcher.registry.offline(kernel.plugin) is not None else 1


def drawing(
    dispatcher: Dispatcher,
    *,
    plugin: str | None = None,
    op: str | None = None,
    names: Sequence[str] | None = None,
    device: Where = None,
    seed: int,
    budget: Budget = DEFAULT_BUDGET,
    first: int = 0,
    workers: int | None = None,
) -> Drawing:
    """Requests drawn for the same kernels, within a budget over all of them, in as many processes of their own."""
    kernels = [
        kernel
        for kernel in select_kernels(dispatcher, plugin, op, names)
        if kernel.build is None and isinstance(find_venue(dispatcher, kernel, device), Venue)
    ]
    many = workers if workers is not None else min(_MOST_WORKERS, cores())
    return Drawing(dispatcher, kernels, seed, budget, device, first, max(1, min(many, len(kernels))))


def again(dispatcher: Dispatcher, text: str, device: Where = None) -> Iterator[Result]:
    """The results of the one request that ``text`` spells (``portakernel_kit.conformance.drawn.spelling``).

    Raises:
        ArgumentValueError: it is none.
    """
    request = parse_request(text, dispatcher.registry.kernels)
    kernel = dispatcher.registry.kernels[request.kernel]
    venue = find_venue(dispatcher, kernel, device)
    if isinstance(venue, Unavailable):
        yield Result(kernel.name, kernel.op, f"{kernel.op}[{request.case.name}]", "claim", "skipped", venue.reason)
        return
    yield from Suite(dispatcher, kernel, venue, request.seed).run(request.unit(kernel.op))


def fresh_seed() -> int:
    """A new seed, whatever state the random number generators of this process are in."""
    return secrets.randbelow(1 << 31)


def select_kernels(
    dispatcher: Dispatcher, plugin: str | None = None, op: str | None = None, names: Sequence[str] | None = None
) -> tuple[Kernel, ...]:
    """The kernels of ``plugin`` for ``op``, of them those with ``names``; all of them where nothing is given.

    Raises:
        UnknownNameError: there is no such plugin or op, or the plugin has no kernel for the op.
    """
    registry = dispatcher.registry
    if op is not None:
        contract(op)
    if plugin is not None and plugin not in registry.plugins():
        broken = next((b for b in registry.manager.broken if b.package.name == plugin), None)
        hint = f"Plugin {broken.package} is broken: {broken.reason}" if broken else ""
        raise UnknownNameError("plugin", plugin, registry.plugins(), hint=hint)
    kernels = tuple(
        kernel
        for kernel in registry.kernels.values()
        if plugin in (None, kernel.plugin) and op in (None, kernel.op) and (not names or kernel.name in names)
    )
    if not kernels and plugin is not None and op is not None:
        ops = {kernel.op for kernel in registry.kernels.values() if kernel.plugin == plugin}
        raise UnknownNameError("op", op, ops, where=f"plugin {plugin}")
    return kernels
