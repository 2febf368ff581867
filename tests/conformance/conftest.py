"""Suites over the first-party kernels, in which single kernels can be replaced by mutants or claim something else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from portakernel.config import Config
from portakernel.conformance.suite import Suite
from portakernel.conformance.venue import Unavailable, find_venue
from portakernel.dispatch import Dispatcher
from portakernel.plugin_manager import PluginManager, installed_packages
from portakernel.registry import Registry

SEED = 20261120
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
        venue = find_venue(dispatcher, kernel)
        if isinstance(venue, Unavailable):
            pytest.skip(venue.reason)
        return Suite(dispatcher, kernel, venue, SEED)

    return make
