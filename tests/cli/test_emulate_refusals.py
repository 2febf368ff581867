"""What the emulator does not do is refused by name where users meet it: a line for each launch, and no traceback."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("tinygrad")
pytest.importorskip("triton")
import torch
from cxx import HAS_CXX
from emulated_hip import needs_hip

from portakernel.authoring.native import Kernel, Options, Source, Unit
from portakernel.emulation import EmulationError, FindingsError, emulating
from portakernel.words.target import Target

pytestmark = [
    pytest.mark.skipif(not HAS_CXX, reason="lacks a C++ compiler, which compiles the engine"),
    needs_hip,
    pytest.mark.usefixtures("forked_workers"),
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION is unset:UserWarning"),
]
MANIFEST = """\
schema_version: 1
plugin: acme
offline: acme_for_cli_tests:compiling
kernels:
  - {op: add, entry: "acme_for_cli_tests:add", targets: {amd: [cdna3]}, dtypes: {x: [float32], y: [x]}}
"""
SOURCE = """\
from pathlib import Path
import torch
from portakernel.authoring.native import Kernel, Options, Source, Unit, compiling
PARAMETERS = ("pointer", "pointer", "pointer", "int64")
KERNEL = Kernel(Unit(Source(Path(__file__).parent, "acme.hip"), ("add",), Options()), PARAMETERS)
def add(x, y, *, out=None):
    made = torch.empty_like(x) if out is None else out
    if x.numel():
        KERNEL(GRID, BLOCK, LDS, x, y, made, x.numel())
    return made
"""
SUM = "  for (long at = threadIdx.x; at < n; at += blockDim.x) out[at] = x[at] + y[at];"
HEAD = '#include <hip/hip_runtime.h>\n#include <stdio.h>\nextern "C" __device__ void __ockl_grid_sync();\n#line 1\n'
ASKS = {
    "printf": ('printf("%d\\n", threadIdx.x);', "a call of the host, as printf is one"),
    "malloc": ("out[0] = *(float*)__ockl_dm_alloc(64);", "memory of the device's heap, as malloc gives it"),
    "a cooperative launch": ("__ockl_grid_sync();", "a cooperative launch, whose workgroups wait for each other"),
}
LAUNCHES = {
    "more LDS than the chip has": (
        ((1,), (64,), 70000),
        "add with 70000 bytes of dynamic LDS takes 70000; a workgroup of gfx942 has 65536",
    ),
    "more work items than a workgroup has": (
        ((1,), (2048,), 0),
        "a block of 2048 work items: add takes at most 1024",
    ),
    "more workgroups than there can be": (
        ((1 << 20, 1 << 12), (64,), 0),
        "a grid of (1048576, 4096, 1) has more than 2147483648 workgroups",
    ),
}


def kernel(body):
    return f'{HEAD}extern "C" __global__ void add(const float* x, const float* y, float* out, long n) {{ {body} }}\n'


def acme(install, body, grid=(1,), block=(64,), lds=0):
    source = f"{SOURCE}GRID, BLOCK, LDS = {grid}, {block}, {lds}\n"
    (install("acme", manifest=MANIFEST, source=source) / "acme.hip").write_text(kernel(f"{body}{SUM}"))


RUN = "run add --emulate amd:gfx942 --kernel acme.add --shape x=40 --shape y=40 --dtype float32 --seed 1"
CHECK = "check --emulate amd:gfx942 --kernel acme.add --budget 0 --workers 1 --seed 1 --json"


def test_the_same_kernel_without_what_is_refused_passes(run, install):
    acme(install, "")
    assert run(RUN).status == 0
    cases = [row["status"] for row in run(CHECK).json["results"] if row["aspect"] == "forward"]
    assert cases.count("passed") > 5  # it does not follow strides


@pytest.mark.parametrize("what", ASKS)
def test_what_only_a_host_does_is_named_with_the_instruction_that_asks(run, install, what):
    body, asked = ASKS[what]
    acme(install, body)
    told = f"the kernel asks for {asked}, which the emulator does not have: "
    ran = run(RUN)
    assert ran.status == 1
    assert "Traceback" not in ran.out + ran.err
    (line,) = [one for one in ran.out.splitlines() if told in one]
    assert line.endswith("; workgroup (0, 0, 0), wave 0, lane 0")
    ran = run(CHECK)
    assert ran.status == 1
    failed = [row for row in ran.json["results"] if row["status"] == "failed" and row["aspect"] == "forward"]
    assert failed
    assert all(told in row["detail"] and not row["traceback"] for row in failed)


def test_an_assert_that_does_not_hold_is_named(run, install):
    acme(install, "if (n > 7) __builtin_trap();")
    ran = run(RUN)
    assert ran.status == 1
    assert "Traceback" not in ran.out + ran.err
    assert "the kernel ends itself: an assert does not hold, or a trap is reached: s_trap" in ran.out


@pytest.mark.parametrize("what", LAUNCHES)
def test_a_launch_that_the_chip_cannot_hold_is_named(run, install, what):
    (grid, block, lds), message = LAUNCHES[what]
    acme(install, "", grid, block, lds)
    ran = run(RUN)
    assert ran.status == 2
    assert ran.err.splitlines()[-1].endswith(message)
    assert len(ran.err.splitlines()) <= 1, ran.err
    ran = run(CHECK)
    assert ran.status == 1
    failed = [row for row in ran.json["results"] if row["status"] == "failed" and row["aspect"] == "forward"]
    assert failed
    assert all(message in row["detail"] and not row["traceback"] for row in failed)


@pytest.mark.parametrize("what", ASKS)
def test_from_python_it_is_raised_where_the_launch_is_made(tmp_path, what):
    body, asked = ASKS[what]
    (tmp_path / "acme.hip").write_text(kernel(body))
    parameters = ("pointer", "pointer", "pointer", "int64")
    launched = Kernel(Unit(Source(tmp_path, "acme.hip"), ("add",), Options()), parameters)
    x = torch.zeros(64)
    with pytest.raises(FindingsError) as raised, emulating(Target("amd", "gfx1201")):
        launched((1,), (32,), 0, x, x, x, 64)
    told = str(raised.value).splitlines()
    assert told[0] == "emulated on amd:gfx1201, acme.add over 1 workgroups, which did not run to its end:"
    assert told[1].startswith(f"  the kernel asks for {asked}, which the emulator does not have: ")
    assert len(told) == 2


def test_wrong_numbers_are_named_by_the_ops_rule(run, install):
    acme(install, "if (threadIdx.x == 7) { out[7] = 0; return; }")
    ran = run(RUN)
    assert ran.status == 1
    (line,) = [one for one in ran.out.splitlines() if "wrong: " in one]
    assert "sum: 1 of 40 elements differ; the worst, at [7]: got 0.0, want " in line
    assert "within the op's tolerance" not in ran.out


def entry(install, body):
    """The plugin with another ``add``, whose body is given."""
    source = SOURCE.partition("def add")[0]
    install("acme", manifest=MANIFEST, source=f"{source}def add(x, y, *, out=None):\n    {body}\n")


def test_a_call_that_launches_nothing_is_no_pass(run, install):
    entry(install, "return x + y")
    ran = run(RUN)
    assert ran.status == 1
    assert "the call launched nothing: no machine code was emulated" in ran.out


def test_what_a_kernel_raises_itself_is_named_with_its_place(run, install):
    entry(install, "raise RuntimeError('no grid')")
    ran = run(RUN)
    assert ran.status == 1
    assert "Traceback" not in ran.out + ran.err
    place = r"the kernel raised RuntimeError \(\S*acme_for_cli_tests/__init__\.py:\d+\): no grid"
    assert re.search(place, re.sub(r"\s+", " ", ran.out)), ran.out


def test_from_python_more_lds_than_the_chip_has_is_named(tmp_path):
    (tmp_path / "acme.hip").write_text(kernel(SUM))
    parameters = ("pointer", "pointer", "pointer", "int64")
    launched = Kernel(Unit(Source(tmp_path, "acme.hip"), ("add",), Options()), parameters)
    x = torch.zeros(64)
    message = r"^add with 200000 bytes of dynamic LDS takes 200000; a workgroup of gfx950 has 163840$"
    with pytest.raises(EmulationError, match=message), emulating(Target("amd", "gfx950")):
        launched((1,), (32,), 200000, x, x, x, 64)
