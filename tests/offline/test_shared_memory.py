"""What compiled functions share is held against what a program may share on their target."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from typing import Any

import pytest

from portakernel.offline.compiled import Compiled
from portakernel.offline.outcome import Outcome
from portakernel.offline.shared_memory import available_bytes
from portakernel.runtime import dispatcher
from portakernel.words.target import Target

# Its program turns a tile of 128 x 256 numbers over, which goes through shared memory: 128 KiB of float32.
MANIFEST = """\
schema_version: 1
plugin_api: 2
plugin: acme
requires: {modules: {triton: ">=3.6"}}
offline: acme_kernels.tiles:compiling
kernels:
  - op: add
    entry: acme_kernels.tiles:add
    targets: {nvidia: sm_80+, amd: gfx942+}
    dtypes: {x: [float32], y: [x]}
    priority: 10
"""

KERNEL = """\
import torch
import triton
import triton.language as tl

from portakernel.authoring.triton import compiling, launch


@triton.jit
def _turned(x, z, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    tile = tl.load(x + row * COLUMNS + column)
    turned = tl.trans(tile)
    tl.store(z + tl.arange(0, COLUMNS)[:, None] * ROWS + tl.arange(0, ROWS)[None, :], turned)


def add(x, y, *, out=None):
    z = torch.empty_like(x)
    launch(_turned, (1, 1), x, z, ROWS=128, COLUMNS=256, num_warps=8)
    return z
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory, python, imported_with_triton: tuple[str, ...]):
    """Runs ``portakernel compile`` for targets, where the package is installed."""
    pytest.importorskip("triton")
    site = tmp_path_factory.mktemp("site")
    for name, text in {
        "acme_kernels/__init__.py": "",
        "acme_kernels/plugin.yaml": MANIFEST,
        "acme_kernels/tiles.py": KERNEL,
        "acme_kernels-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: acme-kernels\nVersion: 1.0\n",
        "acme_kernels-1.0.dist-info/entry_points.txt": "[portakernel]\nacme = acme_kernels\n",
    }.items():
        path = site / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PORTAKERNEL_")}
        environment = {**kept, "PYTHONPATH": str(site), "PYTHONWARNINGS": "ignore", "COLUMNS": "200"}
        how = {"env": environment, "imports": imported_with_triton, "forks": True}
        return python("-m", "portakernel", "compile", "--plugin", "acme", *arguments, **how)

    return run


def test_compile_fails_a_kernel_that_needs_more_than_the_architecture_has(outcomes):
    answer = outcomes("--target", "amd:gfx942", "--target", "amd:gfx950", "--target", "nvidia:sm_86", "--json")
    assert answer.returncode == 1, answer.stderr
    found = {outcome["target"]: outcome for outcome in json.loads(answer.stdout)["outcomes"]}
    needed = {target: outcome["functions"][0]["shared_bytes"] for target, outcome in found.items()}
    assert all(65536 < size <= 131072 + 8192 for size in needed.values()), needed
    has = {target: outcome["shared_bytes_available"] for target, outcome in found.items()}
    assert has == {"amd:gfx942": 65536, "amd:gfx950": 163840, "nvidia:sm_86": 101376}
    assert {target: outcome["verdict"] for target, outcome in found.items()} == {
        "amd:gfx942": "fails",
        "amd:gfx950": "compiles",
        "nvidia:sm_86": "fails",
    }
    assert found["amd:gfx950"]["reason"] == ""
    for target in ("amd:gfx942", "nvidia:sm_86"):
        text = f"tiles._turned needs {needed[target]} bytes of shared memory; a program has {has[target]} on {target}"
        assert found[target]["reason"] == text


def test_on_an_architecture_that_no_backend_lists_nothing_is_judged_and_the_report_says_so(outcomes):
    target = "amd:gfx1251"  # newer than the list ends, and known to the LLVM of Triton
    (outcome,) = json.loads(outcomes("--target", target, "--json").stdout)["outcomes"]
    assert (outcome["verdict"], outcome["shared_bytes_available"]) == ("compiles", None)
    told = outcomes("--target", target, "--target", "amd:gfx950")
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout.splitlines()[-1:] == [
        f"  {target}: no backend says how much memory a program may share there; shared bytes were not judged"
    ]


def function(name: str, shared_bytes: int) -> Compiled:
    return Compiled(name, "amd:gfx942", 40, 0, shared_bytes, 0.1, "s_endpgm")


def outcome(available: int | None, *functions: Compiled) -> Outcome:
    return Outcome("p.k", "amd:gfx942", "a call", functions, shared_bytes_available=available)


def test_each_function_that_is_too_large_is_named_and_what_fits_exactly_is_none():
    fits = outcome(65536, function("m.f", 65536))
    assert (fits.verdict, fits.reason, fits.is_judged) == ("compiles", "", True)
    found = outcome(65536, function("m.f", 65537), function("m.g", 64), function("m.h", 99999))
    assert found.verdict == "fails"
    assert found.reason.split("\n") == [
        "m.f needs 65537 bytes of shared memory; a program has 65536 on amd:gfx942",
        "m.h needs 99999 bytes of shared memory; a program has 65536 on amd:gfx942",
    ]


def test_where_nobody_knows_what_there_is_nothing_is_judged():
    found = outcome(None, function("m.f", 1 << 30))
    assert (found.verdict, found.is_judged) == ("compiles", False)
    assert found.to_json()["shared_bytes_available"] is None
    assert replace(found, functions=(function("m.f", 0),)).is_judged


@pytest.mark.parametrize(
    ("target", "kib"),
    [
        ("nvidia:sm_75", 64),
        ("nvidia:sm_80", 163),
        ("nvidia:sm_89", 99),
        ("nvidia:sm_110", 227),
        ("amd:gfx90a", 64),
        ("amd:gfx950", 160),
        ("amd:gfx1201", 64),
        ("cpu:x86_64", None),
        ("nvidia:sm_130", None),
        ("acme:one", None),
    ],
)
def test_what_a_program_may_share_is_what_the_backend_says(target: str, kib: Any):
    expected = None if kib is None else kib * 1024
    assert available_bytes(dispatcher().registry, Target.parse(target)) == expected
