"""The kit's units as pytest items: one for each case in given dtypes, and for each kernel's claims."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from portakernel import runtime
from portakernel.emulation.session import check_target
from portakernel.registry.kernel import Kernel
from portakernel_kit.conformance.drawn.requests import Requests
from portakernel_kit.conformance.op_faults import OpFault
from portakernel_kit.conformance.result import Result
from portakernel_kit.conformance.runner import fresh_seed, select_kernels
from portakernel_kit.conformance.suite import Suite
from portakernel_kit.conformance.unit import Unit, drawn_name
from portakernel_kit.conformance.venue import Emulated, Unavailable, Where, find_venue

_SHOWN_FRAMES = 12  # of a traceback's end: the kernel's part, not the kit's


class ConformanceFailure(Exception):  # noqa: N818 - what pytest shows is the report, not this name
    """At least one aspect of an item failed."""

    def __init__(self, results: list[Result]) -> None:
        self.results = results
        super().__init__("\n".join(str(result) for result in results if result.status == "failed"))


class KernelNode(pytest.Collector):
    """One kernel's items."""

    def __init__(self, *, kernel: Kernel, seed: int, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.kernel, self.seed = kernel, seed

    def collect(self) -> Iterator[pytest.Item]:
        """One item for each unit, or one that is skipped where the kernel cannot run."""
        venue = find_venue(runtime.dispatcher(), self.kernel, where_asked(self.config))
        if isinstance(venue, Unavailable):
            yield UnavailableItem.from_parent(self, name=f"{self.kernel.op}[*]", reason=venue.reason)
            return
        all_builds = bool(self.config.getoption("portakernel_all_builds"))
        try:
            suite = Suite(runtime.dispatcher(), self.kernel, venue, self.seed, all_builds=all_builds)
            units = suite.units()
        except OpFault as fault:
            yield FaultyItem.from_parent(self, name=f"{self.kernel.op}[*]", fault=fault)
            return
        for unit in units:
            yield UnitItem.from_parent(self, name=unit.name, suite=suite, unit=unit)
        requests = Requests(suite)
        draws = int(self.config.getoption("portakernel_draws") or 0)
        for place in range(0 if self.kernel.build is not None else draws):
            name = drawn_name(self.kernel.op, place)
            yield DrawnItem.from_parent(self, name=name, requests=requests, place=place)


class UnavailableItem(pytest.Item):
    """A kernel that has no place to run here."""

    def __init__(self, *, reason: str, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.reason = reason

    def runtest(self) -> None:
        """Skips."""
        pytest.skip(self.reason)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Where the item is from: the kernel."""
        return self.path, None, self.nodeid


class FaultyItem(pytest.Item):
    """A kernel of an op that is at fault itself, so that there are no units."""

    def __init__(self, *, fault: OpFault, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.fault = fault

    def runtest(self) -> None:
        """Fails."""
        pytest.fail(str(self.fault), pytrace=False)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Where the item is from: the kernel."""
        return self.path, None, self.nodeid


class UnitItem(pytest.Item):
    """One unit of one kernel; every aspect runs, and all that failed are reported."""

    def __init__(self, *, suite: Suite, unit: Unit, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.suite, self.unit = suite, unit

    def runtest(self) -> None:
        """Runs the unit."""
        results = list(self.suite.run(self.unit))
        if any(result.status == "failed" for result in results):
            raise ConformanceFailure(results)
        if results and all(result.status == "skipped" for result in results):
            pytest.skip("; ".join(result.detail for result in results))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The failed aspects, each with what is wrong and, where the kernel raised, where."""
        if not isinstance(excinfo.value, ConformanceFailure):
            return super().repr_failure(excinfo, style)
        where = f"on {self.suite.venue}" + (f" in mode {self.suite.venue.mode!r}" if self.suite.venue.mode else "")
        lines = [f"{self.suite.kernel.name} does not conform {where}"]
        for result in excinfo.value.results:
            if result.status == "failed":
                lines.append(f"  {result.case} {result.aspect}: {result.detail}")
                lines += [f"    {line}" for line in result.traceback.splitlines()[-_SHOWN_FRAMES:]]
        again = f"--portakernel-plugin={self.suite.kernel.plugin} --portakernel-seed={self.suite.seed}"
        if self.suite.venue.emulator is not None:
            again += f" --portakernel-emulate={self.suite.venue.emulator.target}"
        return "\n".join([*lines, f"  The same inputs again: pytest {again}"])

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Where the item is from: the kernel."""
        return self.path, None, self.nodeid


class DrawnItem(UnitItem):
    """One drawn request of a kernel: which, is known once it runs, so that every process has the same items."""

    def __init__(self, *, requests: Requests, place: int, **keywords: Any) -> None:
        super().__init__(suite=requests.suite, unit=Unit("drawn", keywords["name"]), **keywords)
        self.requests, self.place = requests, place

    def runtest(self) -> None:
        """Runs the request."""
        unit = self.requests.at(self.place)
        if unit is None:
            pytest.skip("the kernel claims no other request that could be drawn")
        self.unit = unit
        super().runtest()


def where_asked(config: pytest.Config) -> Where:
    """Where the kernels run: in the emulator that an option asks for, or wherever they can.

    Raises:
        UnknownNameError, ArgumentValueError: there is no such target.
        EmulationError: it is not emulated, or tinygrad is not installed.
    """
    text = config.getoption("portakernel_emulate")
    if text is None:
        return None
    target = runtime.dispatcher().registry.target(str(text))
    check_target(target)
    return Emulated(target)


def selected_kernels(config: pytest.Config) -> tuple[Kernel, ...]:
    """The kernels that the options name.

    Raises:
        UnknownNameError: one of them names nothing.
    """
    plugins, ops = config.getoption("portakernel_plugin") or [None], config.getoption("portakernel_op") or [None]
    dispatcher = runtime.dispatcher()
    found = (kernel for plugin in plugins for op in ops for kernel in select_kernels(dispatcher, plugin, op))
    return tuple({kernel.name: kernel for kernel in found}.values())


def collect(session: pytest.Session) -> Iterator[pytest.Item]:
    """The items of every selected kernel."""
    seed = session.config.getoption("portakernel_seed")
    seed = fresh_seed() if seed is None else seed
    for kernel in selected_kernels(session.config):
        nodeid = f"portakernel::{kernel.name}"
        node = KernelNode.from_parent(session, name=kernel.name, nodeid=nodeid, kernel=kernel, seed=seed)
        yield from node.collect()
