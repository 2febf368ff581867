"""The Triton plugin's manifest says what its modules hold, and is read without loading them."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import portakernel_plugins.triton
from portakernel.arch import ArchSpace
from portakernel.contracts import contract
from portakernel.manifest import BackendManifest, PluginManifest
from portakernel.manifest_file import load_manifest

PATH = Path(portakernel_plugins.triton.__file__).with_name("plugin.yaml")
MANIFEST = load_manifest(PluginManifest, PATH, strict=True).manifest
KERNELS = {kernel.op: kernel for kernel in MANIFEST.kernels}


def resolve(entry: str):
    module, _, name = entry.partition(":")
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("module", ["torch", "triton", "numpy"])
def test_importing_the_package_loads_nothing_heavy(module):
    code = f"import sys, portakernel_plugins.triton; sys.exit({module!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("op", KERNELS)
def test_entries_take_what_their_contract_and_manifest_say(op):
    pytest.importorskip("triton")
    kernel, tensors = KERNELS[op], [tensor.name for tensor in contract(op).tensors]
    values = [parameter.name for parameter in contract(op).parameters if not parameter.feature]
    forward = inspect.signature(resolve(kernel.entry)).parameters
    saves = ["save"] if contract(op).saved else []
    assert list(forward) == [*tensors, *values, *(kernel.features or []), "out", *saves]
    if kernel.backward is not None:
        saved = [result.name for result in contract(op).saved]
        backward = inspect.signature(resolve(kernel.backward)).parameters
        assert list(backward) == ["grad_y", *tensors, *saved, *values, *(kernel.features or []), "needs"]


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


@pytest.mark.parametrize("n", [1, 65536])
def test_the_limits_of_a_row_are_those_of_its_blocks(n):
    pytest.importorskip("triton")
    configurations = importlib.import_module("portakernel_plugins.triton.configurations")
    assert (KERNELS["rms_norm"].limits["N"].min, KERNELS["rms_norm"].limits["N"].max) == (1, 65536)
    for warp_size in (32, 64):
        processor = configurations.Processor("gfx90a" if warp_size == 64 else "sm_90", 100, warp_size)
        how = configurations.configured("rms_norm.forward", processor, n)
        assert how.columns == n
        assert how.warps * warp_size <= 1024
