"""The Triton plugin's manifest says what its modules hold, and is read without loading them."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from contextlib import nullcontext
from itertools import product
from pathlib import Path

import pytest

import portakernel_plugins.triton
from portakernel.config import Config
from portakernel.contracts import contract
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.manifest.loading import load_manifest
from portakernel.manifest.models import BackendManifest, PluginManifest
from portakernel.registry.registry import Registry
from portakernel.words.arch import ArchSpace
from portakernel_kit.conformance.suite import Suite
from portakernel_kit.conformance.venue import Venue, claimed_targets

PATH = Path(portakernel_plugins.triton.__file__).with_name("plugin.yaml")
MANIFEST = load_manifest(PluginManifest, PATH, strict=True).manifest
KEYS = {"blocks", "archs", "up_to", "element_bytes", "unit", "elements", "warps", "resident_warps", "options", "always"}
KERNELS = {kernel.name or kernel.op: kernel for kernel in MANIFEST.kernels}


def resolve(entry: str):
    module, _, name = entry.partition(":")
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("module", ["torch", "triton", "numpy"])
def test_importing_the_package_loads_nothing_heavy(module):
    code = f"import sys, portakernel_plugins.triton; sys.exit({module!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", KERNELS)
def test_entries_take_what_their_contract_and_manifest_say(name):
    pytest.importorskip("triton")
    kernel = KERNELS[name]
    described = contract(kernel.op)
    alike = [other for other in MANIFEST.kernels if other.entry == kernel.entry]  # one function serves them all
    claims = (claim for other in alike for claim in (other, *(other.variants or [])))
    features = {feature for claim in claims for feature in claim.features or []}
    parameters = [p.name for p in described.parameters if not p.feature or p.name in features]
    tensors = [t.name for t in described.tensors if not t.feature or t.name in features]
    forward = list(inspect.signature(resolve(kernel.entry)).parameters)
    positional = [t.name for t in described.tensors if not t.keyword and t.name in tensors]
    assert forward[: len(positional)] == positional
    saves = ["save"] if described.saved and kernel.backward is not None else []
    out = [] if described.mutated else ["out"]
    assert sorted(forward) == sorted([*tensors, *parameters, *out, *saves])
    if kernel.backward is not None:
        given = [f"grad_{output.name}" for output in described.outputs if output.differentiable]
        kept = [name for name in described.backward_inputs if name in tensors or name not in described.names]
        given += [*kept, *(result.name for result in described.saved)]
        backward = list(inspect.signature(resolve(kernel.backward)).parameters)
        assert len(backward) == len(given) + len(parameters) + 1
        assert set(backward[len(given) :]) == {*parameters, "needs"}


@pytest.mark.parametrize("name", KERNELS)
def test_the_op_s_cases_put_every_claim_to_the_test_on_gpus_that_are_not_here(name):
    pytest.importorskip("triton")
    registry = Registry()
    kernel = registry.kernels[f"triton.{name}"]
    for target in {next(claimed_targets(claim, registry.spaces)) for _, claim in kernel.variants}:
        venue = Venue("cpu", (target,), mode="not here", enter=nullcontext)
        assert Suite(Dispatcher(registry, Config()), kernel, venue, 0).uncovered() == [], target


def test_the_probe_and_the_mode_resolve():
    pytest.importorskip("triton")
    assert callable(resolve(MANIFEST.ready))
    with resolve(MANIFEST.modes["interpreter"].context)():
        pass


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
def test_claimed_archs_are_those_that_the_readme_saw_compile(vendor):
    backend = load_manifest(
        BackendManifest, PATH.parents[3] / "backends/portakernel_backends" / vendor / "backend.yaml", strict=True
    ).manifest
    space = ArchSpace(vendor, tuple(map(tuple, backend.lines)), {k: tuple(v) for k, v in backend.families.items()})
    terms = MANIFEST.defaults.targets[vendor]
    selector = space.parse([terms] if isinstance(terms, str) else terms)
    claimed = {arch for arch in space.archs if space.membership(selector, arch).inside}
    rows = [row.split("|") for row in PATH.with_name("README.md").read_text().splitlines() if row.endswith("| yes |")]
    assert claimed == {arch for row in rows for arch in row[1].replace(",", " ").split() if arch in space.archs}


@pytest.mark.parametrize("warp_size", [32, 64])
@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "gfx90a", "gfx1201", "interpreter"])
def test_every_kernel_is_configured_for_every_size_and_architecture(arch, warp_size):
    pytest.importorskip("triton")
    configurations = importlib.import_module("portakernel_plugins.triton.launching.configurations")
    processor = configurations.Processor(arch, 100, warp_size)
    for kernel, entries in configurations.entries().items():
        assert {key for entry in entries for key in entry} <= KEYS
        for entry in (entry for entry in entries if "blocks" in entry):  # a row of the bucket's end is held
            assert entry["elements"] * entry["blocks"] >= entry["up_to"]
        sizes = (1, 64, 1024, 4096, 8192, 16384, 28672, 65536, 1 << 20)
        for columns, width, unit in product(sizes, (1, 2, 4), (1, 16)):
            how = configurations.configured(kernel, processor, columns, width, unit)
            assert (how.columns, how.rows >= 1, how.programs >= 100) == (1 << (columns - 1).bit_length(), True, True)
            assert how.warps * warp_size <= 1024
