"""A package from outside launches Triton kernels with ``portakernel.authoring.triton`` alone."""

from __future__ import annotations

import os
import re
import subprocess

import pytest

pytest.importorskip("triton")

MANIFEST = """\
schema_version: 1
plugin_api: 2
plugin: acme
requires: {modules: {triton: ">=3.6"}}
ready: acme_kernels.rows:ready
modes:
  interpreter: {context: "acme_kernels.rows:interpreting", torch_device: cpu, max_elements: 65536}
offline: acme_kernels.rows:compiling
kernels:
  - op: silu_and_mul
    entry: acme_kernels.rows:silu_and_mul
    targets: {nvidia: sm_80+, amd: gfx942}
    dtypes: {x: [float32, bfloat16]}
    limits: {N: {max: 256}}
    properties: {deterministic: true, batch_invariant: true, graph_capture: true}
    priority: 10
"""

KERNEL = """\
import torch
import triton
import triton.language as tl

from portakernel.authoring.tensors import delivered, row_target, with_row_stride
from portakernel.authoring.triton import compiling, grid_of, interpreting, launch, program_index, ready


@triton.jit
def _silu_and_mul(x, y, rows, columns, x_stride, y_stride, BLOCK: tl.constexpr):
    row = program_index()
    if row >= rows:
        return
    lane = tl.arange(0, BLOCK)
    inside = lane < columns
    gate = tl.load(x + row * x_stride + lane, mask=inside).to(tl.float32)
    up = tl.load(x + row * x_stride + columns + lane, mask=inside).to(tl.float32)
    silu = gate / (1 + tl.exp(-gate))
    tl.store(y + row * y_stride + lane, (silu * up).to(y.dtype.element_ty), mask=inside)


def silu_and_mul(x, *, out=None):
    columns = x.shape[-1] // 2
    y, y_stride = row_target(x[..., :columns], out)
    x, x_stride = with_row_stride(x)
    rows = y.numel() // columns if columns else 0
    if rows:
        block = triton.next_power_of_2(columns)
        launch(_silu_and_mul, grid_of(rows), x, y, rows, columns, x_stride, y_stride, BLOCK=block, num_warps=4)
    return delivered(y, out)
"""


@pytest.fixture(scope="module")
def run(python, imported_with_triton: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory):
    """Runs ``portakernel`` where the package is installed."""
    site = tmp_path_factory.mktemp("site")
    for name, text in {
        "acme_kernels/__init__.py": "",
        "acme_kernels/plugin.yaml": MANIFEST,
        "acme_kernels/rows.py": KERNEL,
        "acme_kernels-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: acme-kernels\nVersion: 1.0\n",
        "acme_kernels-1.0.dist-info/entry_points.txt": "[portakernel]\nacme = acme_kernels\n",
    }.items():
        path = site / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    environment = os.environ | {"PYTHONPATH": str(site), "COLUMNS": "100"}

    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        how = {"cwd": site, "env": environment, "imports": imported_with_triton, "forks": True}
        return python("-m", "portakernel", *arguments, **how)

    return command


def test_it_comes_in_by_the_door(run):
    ran = run("validate", "acme_kernels", "--imports")
    assert (ran.returncode, ran.stdout) == (0, "1 manifest: no problems\n"), ran.stderr


def test_it_conforms_in_the_interpreter(run):
    ran = run("check", "--plugin", "acme", "--budget", "1s")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert re.search(r"acme.silu_and_mul \(interpreter\) +[1-9]\d+ +0 ", ran.stdout)


@pytest.mark.parametrize("target", ["nvidia:sm_90", "amd:gfx942"])
def test_it_compiles_for_gpus_that_are_not_here(run, target):
    ran = run("compile", "--plugin", "acme", "--target", target)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"acme.silu_and_mul  {target}" in ran.stdout
    assert "  compiles  " in ran.stdout
