"""The HIP plugin: what its manifest says holds, and its sources compile for every architecture as they are meant to."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import portakernel_plugins.hip
from portakernel.authoring.native import compiling
from portakernel.claims.capability import CannotRun, ReasonCode
from portakernel.contracts import contract
from portakernel.errors import ArgumentValueError
from portakernel.manifest.loading import load_manifest
from portakernel.manifest.models import PluginManifest
from portakernel.words.target import Target
from portakernel_plugins.hip import configurations, launch
from portakernel_plugins.hip.add import add
from portakernel_plugins.hip.layer_norm import layer_norm
from portakernel_plugins.hip.quantize_fp8 import quantize_fp8
from portakernel_plugins.hip.softmax import softmax

FOLDER = Path(portakernel_plugins.hip.__file__).parent
MANIFEST = load_manifest(PluginManifest, FOLDER / "plugin.yaml", strict=True).manifest
KERNELS = {kernel.name or kernel.op: kernel for kernel in MANIFEST.kernels}
OPS = sorted({kernel.op for kernel in MANIFEST.kernels})
AMD = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")
KEYS = {"archs", "up_to", "threads", "row_threads", "packs", "blocks"}


def resolve(entry: str):
    module, _, name = entry.partition(":")
    return getattr(importlib.import_module(module), name)


def compiled(target: str, call):
    """What a call on meta tensors comes to on ``target``; skips where no compiler can say."""
    try:
        with compiling(Target.parse(target)) as found:
            call()
    except CannotRun as error:
        if error.rejection.code in (ReasonCode.MISSING_TOOLCHAIN, ReasonCode.MISSING_LIBRARY):
            pytest.skip(f"lacks a compiler: {error.rejection.text}")
        raise
    return found


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


# --- manifest and data -----------------------------------------------------------------------------------------------


def test_importing_the_package_loads_nothing_heavy():
    code = "import sys, portakernel_plugins.hip; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", KERNELS)
def test_entries_take_what_their_contract_and_manifest_say(name):
    kernel = KERNELS[name]
    described, features = contract(kernel.op), set(kernel.features or [])
    parameters = [p.name for p in described.parameters if not p.feature or p.name in features]
    tensors = [t.name for t in described.tensors if not t.feature or t.name in features]
    forward = list(inspect.signature(resolve(kernel.entry)).parameters)
    assert forward[: len(tensors)] == tensors
    saves = ["save"] if described.saved else []
    assert sorted(forward) == sorted([*tensors, *parameters, "out", *saves])
    assert (kernel.saves == "contract") == bool(saves)


@pytest.mark.parametrize("op", OPS)
def test_nvidia_runs_what_amd_runs_behind_all_others(op):
    amd, nvidia = KERNELS[op], KERNELS[f"{op}_nvidia"]
    same = {"entry", "saves", "evidence", "dtypes", "limits", "features", "variants"}
    assert [amd.model_dump(include=same), MANIFEST.defaults.priority] == [nvidia.model_dump(include=same), 50]
    assert (amd.targets, nvidia.targets, nvidia.priority) == (None, {"nvidia": "sm_80+"}, 5)


def test_the_probe_the_mode_and_the_compiler_resolve():
    assert callable(resolve(MANIFEST.ready))
    assert callable(resolve(MANIFEST.offline))
    with resolve(MANIFEST.modes["emulator"].context)():
        pass


@pytest.mark.parametrize("arch", [*AMD, "sm_80", "sm_90"])
def test_every_kernel_is_configured_for_every_size(arch):
    for kernel, entries in configurations.entries().items():
        assert {key for entry in entries for key in entry} <= KEYS
        for size in (1, 2, 5, 32, 33, 64, 128, 129, 1024, 1025, 4096, 8192, 8193, 1 << 20):
            how = configurations.configuration(kernel, arch, size)
            assert how.threads <= 1024
            assert how.threads % how.row_threads == 0
            # a row is within a warp, of whatever size, or the block's
            assert how.row_threads <= 32 or how.row_threads == how.threads
            assert how.packs == 0 or how.packs * how.row_threads >= size
            assert how.packs <= how.most_packs


def test_every_file_is_named_that_a_source_may_include():
    sources = FOLDER / "sources"
    programs = {
        value
        for path in FOLDER.glob("*.py")
        for value in vars(importlib.import_module(f"portakernel_plugins.hip.{path.stem}")).values()
        if isinstance(value, launch.Program)
    }
    assert {f"{program.name}.hip" for program in programs} == {path.name for path in sources.glob("*.hip")}
    for program in programs:
        needed, todo = set(), [program.source.file]
        while todo:
            found = re.findall(r'#include "([^"]+)"', (sources / todo.pop()).read_text())
            todo += set(found) - needed
            needed |= set(found)
        assert needed <= set(program.source.headers)


def test_tensors_on_the_cpu_are_refused_with_the_way_out():
    x = torch.zeros(4)
    with pytest.raises(ArgumentValueError, match=r"given tensors on cpu; .* inside .*emulator\.emulating\(\)"):
        add(x, x)


# --- compiled, not run -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["gfx942", "gfx1201"])
def test_what_the_gate_does_not_compile_needs_no_scratch_memory_either(arch):
    def call() -> None:
        for columns in (300001, 1009):
            x, weight = meta(2, columns, dtype=torch.float16), meta(columns, dtype=torch.float32)
            layer_norm(x, weight, weight, eps=1e-5)
            softmax(x)
        quantize_fp8(x, granularity="tensor", dtype="float8_e4m3fn")

    found = compiled(f"amd:{arch}", call)
    assert len(found) == 6
    assert [(c.function, c.spilled_bytes) for c in found if c.spilled_bytes] == []


@pytest.mark.parametrize(
    ("target", "instructed"),
    [
        ("amd:gfx90a", ()),
        ("amd:gfx942", ("float8_e4m3fnuz", "float8_e5m2fnuz")),
        ("amd:gfx950", ("float8_e4m3fn", "float8_e5m2")),
        ("amd:gfx1100", ()),
        ("amd:gfx1201", ("float8_e4m3fn", "float8_e5m2")),
        ("nvidia:sm_80", ()),
        ("nvidia:sm_90", ("float8_e4m3fn", "float8_e5m2")),
    ],
)
def test_float8_is_an_instructions_where_there_is_one_for_that_kind_of_float8(target, instructed):
    def quantised(dtype: str):
        return compiled(target, lambda: quantize_fp8(meta(8, 256), granularity="block_1x128", dtype=dtype))[0]

    wanted = {"e4m3": r"v_cvt_pk_fp8_f32|cvt\.rn\.satfinite\.e4m3x2", "e5m2": r"v_cvt_pk_bf8_f32|satfinite\.e5m2x2"}
    asked = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
    # where there is none, one that were asked for would not assemble: one of each kind tells
    for dtype in asked if instructed else asked[::3]:
        kind = "e4m3" if "e4m3" in dtype else "e5m2"
        found = re.search(wanted[kind], quantised(dtype).assembly)
        assert (dtype, found is not None) == (dtype, dtype in instructed)
