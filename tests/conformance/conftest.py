"""Suites over the first-party kernels, in which kernels can be replaced by mutants or claim something else."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import Tensor

from portakernel.config import Config
from portakernel.contracts import contract
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.registry.plugin_manager import Package, PluginManager, installed_packages
from portakernel.registry.registry import Registry
from portakernel_kit.conformance.suite import Suite
from portakernel_kit.conformance.trial import Trial
from portakernel_kit.conformance.unit import Unit
from portakernel_kit.conformance.venue import Unavailable, find_venue

SEED = 20261120
Kernel = Callable[..., Any]
Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


class MutatingDispatcher(Dispatcher):
    """Loads kernels through a wrapper where one is given for their entry."""

    def __init__(self, registry: Registry, wrappers: dict[str, Wrap], config: Config) -> None:
        super().__init__(registry, config)
        self.wrappers = wrappers

    def entry(self, entry: str) -> Any:
        loaded = super().entry(entry)
        return self.wrappers[entry](loaded) if entry in self.wrappers else loaded


@pytest.fixture(scope="session")
def packages():
    return [package for package in installed_packages() if package.first_party]


@pytest.fixture
def registry(packages):
    return Registry(PluginManager(packages))


@pytest.fixture
def make_suite(registry):
    """A suite of the kernel, its forward or backward wrapped, its first variant's claims changed."""

    def make(
        name: str,
        *,
        forward: Wrap | None = None,
        backward: Wrap | None = None,
        disable: tuple[str, ...] = (),
        entry: str | None = None,
        **claims: Any,
    ) -> Suite:
        kernel = registry.kernels[name]
        if entry:
            kernel = replace(kernel, entry=entry)
        if claims:
            (variant, capability), *others = kernel.variants
            kernel = replace(kernel, variants=((variant, replace(capability, **claims)), *others))
        if entry or claims:
            registry.kernels = MappingProxyType({**registry.kernels, name: kernel})
        wrappers = {
            entry: wrap for entry, wrap in ((kernel.entry, forward), (kernel.backward, backward)) if entry and wrap
        }
        dispatcher = MutatingDispatcher(registry, wrappers, Config(disable=disable))
        cpu = next(iter(registry.devices_on("cpu")))  # no other vendor is probed
        venue = find_venue(dispatcher, kernel, cpu)
        if isinstance(venue, Unavailable):
            pytest.skip(venue.reason)
        return Suite(dispatcher, kernel, venue, SEED)

    return make


@pytest.fixture
def ways_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the ways to call a kernel (how an out lies, which gradients are asked for) cases take one each, in turn.

    All of them are taken where such a list comes up first. For modes in which each way in each case takes minutes.
    """
    asked: Counter[str] = Counter()

    def some(_: Trial, ways: Sequence[Any], count: int = 1) -> list[Any]:
        turn = asked[str(ways)]
        asked[str(ways)] += 1
        return [ways[(turn + more) % len(ways)] for more in range(min(count, len(ways)))] if turn else list(ways)

    monkeypatch.setattr(Trial, "some", some)


ACME_MANIFEST = """\
schema_version: 1
plugin: acme
defaults:
  targets: {cpu: any}
  properties: {deterministic: true, inplace: true, graph_capture: true}
kernels:
"""
ACME_SOURCE = """\
import os
import threading

import torch

from portakernel.claims.capability import CannotRun, ReasonCode, Rejection


def add(x, y, *, out=None):
    out = torch.empty(x.shape, dtype=x.dtype) if out is None else out
    return torch.add(x, y, out=out)
"""


@pytest.fixture
def with_acme(packages, monkeypatch):
    """A dispatcher over portakernel's packages and ``acme``, whose package is the folder."""

    def make(folder: Path) -> Dispatcher:
        monkeypatch.syspath_prepend(folder.parent)
        package = Package("acme", folder.name, "acme-kernels", "1", folder)
        dispatcher = Dispatcher(Registry(PluginManager((*packages, package))), Config())
        assert dispatcher.registry.manager.broken == []
        if not dispatcher.registry.devices_on("cpu"):
            pytest.skip("no backend describes this CPU")
        return dispatcher

    return make


@pytest.fixture
def acme(with_acme, tmp_path):
    """A dispatcher with a kernel ``acme.<op>`` beside those of portakernel.

    ``claims`` are its entry's in plugin.yaml, where HERE is its module; ``source`` comes behind an ``add`` that works.
    """

    def make(claims: str, source: str = "", *, op: str = "add") -> Dispatcher:
        module = f"acme_{tmp_path.name}"
        folder = tmp_path / module
        folder.mkdir()
        (folder / "__init__.py").write_text(ACME_SOURCE + source, encoding="utf-8")
        entry = f"  - {{op: {op}, entry: 'HERE:{op}', {claims}}}\n"
        (folder / "plugin.yaml").write_text(ACME_MANIFEST + entry.replace("HERE", module), encoding="utf-8")
        return with_acme(folder)

    return make


@dataclass
class Mutant:
    """What a mutant touched in the case at hand."""

    op: str
    allowance: float = 0.0
    touched: bool = False
    calls: int = 0
    buffers: dict[Any, Tensor] = field(default_factory=dict)

    def tolerance(self, dtype: torch.dtype, part: str = "forward") -> float:
        allowed = getattr(contract(self.op).tolerance, part)
        return allowed[str(dtype).removeprefix("torch.")] + self.allowance

    def nudge(self, tensor: Tensor, place: int, steps: int | None = None) -> None:
        """Moves one element by the fewest numbers of its dtype that no rounding within the tolerance explains."""
        index = tuple(int(i) for i in torch.unravel_index(torch.tensor(place), tensor.shape)) if tensor.dim() else ()
        value = tensor[index].reshape(1)
        steps = math.ceil(2 * self.tolerance(tensor.dtype)) + 1 if steps is None else steps
        if not value.isfinite():
            tensor[index] = 0.0
        else:
            tensor[index] = moved(value, steps)[0]
        self.touched = True

    @staticmethod
    def smallest(tensor: Tensor) -> int:
        """The place of the element of smallest magnitude."""
        return int(torch.where(tensor.isnan(), math.inf, tensor.double().abs()).argmin())

    @staticmethod
    def output(results: Any) -> Tensor:
        """The first output among a kernel's results."""
        return results[0] if isinstance(results, tuple) else results


def moved(value: Tensor, steps: int) -> Tensor:
    """A finite number moved by ``steps`` numbers: away from zero or, where it is large, twice as many towards it."""
    kind = {2: torch.int16, 4: torch.int32}[value.element_size()]
    bits = value.view(kind).clone()
    magnitude = bits & torch.iinfo(kind).max
    large = bool(value.abs() > 1)
    return (bits - 2 * steps if large and bool(magnitude > 2 * steps) else bits + steps).view(value.dtype)


@dataclass(frozen=True)
class Verdict:
    """In how many cases a mutant touched something, and those of them that it survived."""

    touched: int
    survived: tuple[str, ...]


@pytest.fixture
def hunt(make_suite, units_in_turn):
    """The verdict on a mutant of a kernel's forward or backward, in each case that ``only`` picks, dtypes in turn."""

    def hunted(
        name: str,
        *,
        forward: Callable[[Mutant, Kernel], Kernel] | None = None,
        backward: Callable[[Mutant, Kernel], Kernel] | None = None,
        only: Callable[[Unit], bool] = lambda unit: True,
        **claims: Any,
    ) -> Verdict:
        op = name.partition(".")[2].removesuffix("_cpu")
        mutant = Mutant(op, allowance=1.0 if name.startswith("triton") else 0.0)
        wraps = {
            phase: functools.partial(mutate, mutant)
            for phase, mutate in (("forward", forward), ("backward", backward))
            if mutate is not None
        }
        suite = make_suite(name, **wraps, **claims)
        touched, survived = 0, []
        for unit in units_in_turn(suite, lambda unit: unit.kind == "case" and only(unit)):
            mutant.touched = False
            failed = any(result.status == "failed" for result in suite.run(unit))
            touched += mutant.touched
            survived += [unit.name] if mutant.touched and not failed else []
        return Verdict(touched, tuple(survived))

    return hunted


@pytest.fixture
def failing_aspects(make_suite):
    """The aspects that fail in one case of a mutant."""

    def aspects(name: str, unit_name: str, mutate: Callable[[Mutant, Kernel], Kernel]) -> set[str]:
        suite = make_suite(name, forward=functools.partial(mutate, Mutant(name.partition(".")[2].removesuffix("_cpu"))))
        unit = next(unit for unit in suite.units() if unit.name == unit_name)
        return {result.aspect for result in suite.run(unit) if result.status == "failed"}

    return aspects
