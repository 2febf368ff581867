"""``portakernel check --emulate``, ``run --emulate`` and ``compile --count``."""

from __future__ import annotations

import pytest

pytest.importorskip("tinygrad")
pytest.importorskip("triton")
import torch
from cxx import HAS_CXX

from portakernel_kit.cli.run import command, counting

pytestmark = [
    pytest.mark.skipif(not HAS_CXX, reason="lacks a C++ compiler, which compiles the engine"),
    pytest.mark.usefixtures("forked_workers"),
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION is unset:UserWarning"),
]
KNOWN = "amd:gfx90a, amd:gfx942, amd:gfx950, amd:gfx1100, amd:gfx1201"
NOT_LAUNCHED = "the manifest of plugin torch names no `offline`, which compiles its kernels for amd:gfx942: where they"


def test_check_runs_cases_in_the_emulator_and_reports_it_as_their_place(run):
    given = "check --kernel triton.add --emulate amd:gfx942 --budget 0 --workers 1 --seed 3 --json"
    ran = run(given)
    assert ran.status == 0, ran.out
    cases = [row for row in ran.json["results"] if row["aspect"] == "forward"]
    assert cases
    assert {(row["status"], row["device"], row["mode"]) for row in cases} == {
        ("passed", "amd:gfx942 (emulated)", "emulated")
    }


def test_run_prints_numbers_findings_and_counts_of_a_call_out_of_files(run, tmp_path):
    x, y = torch.arange(40.0), torch.full((40,), 0.5)
    torch.save(x, tmp_path / "x.pt")
    torch.save(y, tmp_path / "y.pt")
    files = ("--input", f"x={tmp_path / 'x.pt'}", "--input", f"y={tmp_path / 'y.pt'}")
    words = ("run", "add", "--emulate", "amd:gfx942", "--kernel", "triton.add", "--seed", "1")
    ran = run(*words, *files, "--json")
    assert ran.status == 0, ran.err
    (result,) = ran.json["results"]
    assert (result["dtype"], result["shape"], result["least"], result["most"]) == ("float32", [40], 0.5, 39.5)
    assert (result["largest_error"], result["disagreeing"], ran.json["findings"]) == (0.0, 0, [])
    assert ran.json["count"]["launches"] == 1
    text = run(*words, *files).out
    assert "triton.add, emulated on amd:gfx942, seed 1" in text
    assert "executed, counted by the emulator: this is no time, and says nothing of one by itself" in text


def test_what_is_drawn_beside_a_file_has_the_files_dtype(run, tmp_path):
    torch.save(torch.randn(3, 64), tmp_path / "x.pt")
    words = f"run rms_norm --emulate amd:gfx942 --kernel triton.rms_norm --seed 1 --input x={tmp_path / 'x.pt'}"
    ran = run(f"{words} --json")
    assert ran.status == 0, ran.err
    (result,) = ran.json["results"]
    assert (result["dtype"], result["shape"]) == ("float32", [3, 64])
    ran = run(f"{words} --shape x=3x4")
    assert ran.status == 2
    assert "run: x is 3x4 by --shape and 3x64 by --input: leave out one" in ran.err


def test_what_a_call_writes_into_its_arguments_is_its_result(run):
    shapes = "--shape key=3x2x16 --shape value=3x2x16 --shape key_cache=8x2x2x16 --shape value_cache=8x2x2x16"
    ran = run(f"run write_kv_cache --emulate amd:gfx942 --kernel triton.write_kv_cache --seed 1 --json {shapes}")
    assert ran.status == 0, ran.out + ran.err
    assert [(one["name"], one["largest_error"]) for one in ran.json["results"]] == [
        ("key_cache", 0),
        ("value_cache", 0),
    ]


def test_an_interrupted_call_says_so(run, monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_interruptibly", interrupted)
    words = "run add --emulate amd:gfx942 --kernel triton.add --shape x=40 --shape y=40 --seed 1"
    ran = run(words)
    assert ran.status == 130
    assert "Interrupted in the call of triton.add, emulated on amd:gfx942, seed 1" in ran.out
    known = {"seed": 1, "kernel": "triton.add", "target": "amd:gfx942", "interrupted": True}
    assert run(f"{words} --json").json == known


def test_compile_counts_what_each_phase_executes(run):
    ran = run("compile --plugin triton --op add --target amd:gfx942 --count --json")
    assert ran.status == 0, ran.out
    (counted,) = [one for one in ran.json["counts"] if one["phase"] == "inference"]
    count = counted["count"]
    assert count["bytes_loaded"]["total"] == 2 * count["bytes_stored"]["total"] > 0
    assert count["instructions"]["total"] == sum(count["instructions"]["by_class"].values()) > 0
    assert counted["error"] == ""


PLAIN_MANIFEST = """\
schema_version: 1
plugin: acme
offline: acme_for_cli_tests:compiling
kernels:
  - op: add
    entry: acme_for_cli_tests:add
    targets: {amd: [gfx942]}
    dtypes: {x: [float32], y: [x]}
    limits: {x.contiguous: {in: [true]}, y.contiguous: {in: [true]}}
"""
PLAIN = """\
import torch
import triton
import triton.language as tl
from portakernel.authoring.triton import compiling
@triton.jit
def _add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)
def add(x, y, *, out=None):
    made = torch.empty_like(x) if out is None or not out.is_contiguous() else out
    _add[(triton.cdiv(x.numel(), 256),)](x, y, made, x.numel(), BLOCK=256)
    return made if out is None or made is out else out.copy_(made)
"""


def test_a_kernel_that_triton_itself_launches_is_run_and_counted(run, install):
    install("acme", manifest=PLAIN_MANIFEST, source=PLAIN)
    ran = run(
        "run add --emulate amd:gfx942 --kernel acme.add --shape x=8x100 --shape y=8x100 --dtype float32 --seed 1 --json"
    )
    assert ran.status == 0, ran.err
    (result,) = ran.json["results"]
    assert (result["disagreeing"], ran.json["findings"]) == (0, [])
    assert result["largest_error"] < 1e-6  # the sum is held against float64
    assert ran.json["count"]["launches"] == 1
    assert ran.json["count"]["bytes_loaded"]["total"] == 2 * 4 * 8 * 100


def test_what_a_kernel_raises_as_it_is_counted_is_its_count_s_error(run, monkeypatch):
    def raising(*_):
        raise ValueError("no grid\nmore of it")

    monkeypatch.setattr(counting, "emulated_call", raising)
    ran = run("compile --plugin triton --op add --target amd:gfx942 --count --json")
    assert ran.status == 1
    assert {(one["count"], one["error"]) for one in ran.json["counts"]} == {(None, "ValueError: no grid")}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("check --op add --emulate nvidia:sm_90", f"nvidia:sm_90 is not emulated; these are: {KNOWN}"),
        ("check --op add --emulate amd:gfx1030", f"amd:gfx1030 is not emulated; these are: {KNOWN}"),
        (
            "check --plugin cutlass --op scaled_mm --emulate amd:gfx942",
            "\n  cutlass.scaled_mm: serves nvidia hopper, not amd:gfx942",
        ),
        (
            "check --kernel torch.add --emulate amd:gfx942",
            f"none of these kernels can be emulated on amd:gfx942:\n  torch.add: {NOT_LAUNCHED}",
        ),
        (
            "check --op add --emulate amd:gfx942 --huge",
            "--emulate runs kernels without a device, on small tensors; leave out --huge",
        ),
        (
            "run add --shape x=4",
            "run: give the hardware that is emulated, as in --emulate amd:gfx942",
        ),
        (
            "run add --emulate amd:gfx942 --shape x=4 --shape y=4 --kernel torch.add",
            f"run: no kernel can be emulated for this call on amd:gfx942:\n  torch.add: {NOT_LAUNCHED}",
        ),
        ("run add --emulate amd:gfx942 --input x", "--input 'x' names no file; write ARG=FILE.npy or ARG=FILE.pt"),
        ("run add --emulate amd:gfx942 --input z=z.pt", "unknown tensor argument 'z'"),
        ("run add --emulate amd:gfx942 --input x=x.txt", "--input: x.txt is neither a .npy nor a .pt file"),
        ("run add --emulate amd:gfx942 --input x=absent.pt", "--input: absent.pt cannot be read: [Errno 2]"),
        (
            "run rms_norm --emulate amd:gfx942 --shape x=1000000000000x64",
            "run: with the reference in float64 this call takes about 4096000 GB; this machine has ",
        ),
        ("compile --plugin triton --op add --target nvidia:sm_90 --count", "nvidia:sm_90 is not emulated"),
    ],
)
def test_bad_input_is_refused_by_name(run, given, message):
    ran = run(given)
    assert ran.status == 2
    assert message in ran.err
