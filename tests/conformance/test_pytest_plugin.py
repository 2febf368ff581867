"""``pytest --portakernel-plugin=NAME`` collects the kit's items in any project; without it, it costs nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cxx import HAS_CXX

CONFTEST = """
import portakernel.runtime

dispatcher = portakernel.runtime.dispatcher()
load = dispatcher.entry


def entry(name):
    kernel = load(name)

    def off_by_one(x, y, *, out=None):
        result = kernel(x, y, out=out)
        if result.dim() == 3:
            result += 1.0
        return result

    return off_by_one if name.endswith("torch.add:add") else kernel


dispatcher.entry = entry
"""


@pytest.fixture
def run_pytest(python, imported_to_compile):
    def run(folder: Path, *arguments: str) -> tuple[int, str]:
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "PORTAKERNEL_"))}
        given = ["-p", "no:cacheprovider", "-W", "error", "--color=no", *arguments]
        done = python("-m", "pytest", *given, cwd=folder, env=environment, imports=imported_to_compile, forks=True)
        return done.returncode, done.stdout + done.stderr

    return run


def test_kernels_of_a_plugin_are_items_in_every_worker(run_pytest, tmp_path):
    (tmp_path / "test_own.py").write_text("def test_own(): pass\n")
    status, text = run_pytest(tmp_path, "-n", "2", "-v", "--portakernel-plugin=torch", "--portakernel-op=rms_norm")
    assert status == 0, text
    # xdist shows the dots of a kernel's name as colons
    passed = set(re.findall(r"PASSED portakernel::torch(?:\.|::)rms_norm_cpu::(.*\])", text))
    assert {
        "rms_norm[sliced rows, x=bfloat16, weight=bfloat16]",
        "rms_norm[autograd, x=float32, weight=float32]",
        "rms_norm[boundary]",
        "rms_norm[coverage]",
    } <= passed
    if not torch.cuda.is_available():
        assert re.search(r"SKIPPED portakernel::torch(\.|::)rms_norm::rms_norm\[\*\]", text)
    assert re.search(r"PASSED test_own\.py::test_own", text)


def test_items_appear_where_there_is_no_test_file_and_failures_name_aspects_and_seed(run_pytest, tmp_path):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    status, text = run_pytest(
        tmp_path, "-p", "no:randomly", "--portakernel-plugin=torch", "--portakernel-op=add", "--portakernel-seed=5",
        "-k", "dimensions or odd or autograd",
    )  # fmt: skip
    assert status == 1, text
    counts = {kind: int(count) for count, kind in re.findall(r"(\d+) (passed|failed|deselected)", text)}
    assert (counts["failed"], counts["passed"]) == (3, 6), text
    assert "torch.add does not conform on" in text
    assert re.search(r"add\[three dimensions, x=float32, y=float32\] forward: sum: 105 of 105 elements differ", text)
    assert re.search(r"add\[three dimensions, x=float32, y=float32\] out: contiguous out: sum: ", text)
    assert "The same inputs again: pytest --portakernel-plugin=torch --portakernel-seed=5" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--portakernel-plugin=torhc"], "ERROR: --portakernel-plugin: unknown plugin 'torhc'; did you mean 'torch'?"),
        (
            ["--portakernel-plugin=torch", "--portakernel-op=ad"],
            "ERROR: --portakernel-op: unknown op 'ad'; did you mean 'add'?",
        ),
    ],
)
def test_unknown_name_ends_the_run_before_collection(run_pytest, tmp_path, options, message):
    status, text = run_pytest(tmp_path, *options)
    assert (status, text.strip()) == (4, message)


@pytest.mark.parametrize("draws", ["-3", "1.5", "some"])
def test_a_number_of_draws_is_0_or_more(run_pytest, tmp_path, draws):
    status, text = run_pytest(tmp_path, f"--portakernel-draws={draws}")
    assert status == 4
    said = f"argument --portakernel-draws: '{draws}' is no number of requests; it takes 0, for none, or more"
    assert said in " ".join(text.split())


def test_plugin_imports_nothing_of_weight_until_it_is_asked():
    code = (
        "import sys, portakernel_kit.conformance.pytest_plugin\n"
        "print(sorted({'torch', 'pydantic', 'yaml', 'portakernel.registry.registry'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_the_emulator_runs_a_plugins_items_for_a_target(run_pytest, tmp_path):
    for module in ("tinygrad", "triton"):
        pytest.importorskip(module)
    if not HAS_CXX:
        pytest.skip("lacks a C++ compiler, which compiles the engine")
    asked = ("-p", "no:xdist", "-p", "no:randomly", "--portakernel-plugin=triton", "--portakernel-op=add")
    asked += ("--portakernel-draws=0", "-W", "ignore:TRITON_DEFAULT_FP_FUSION is unset:UserWarning")
    status, text = run_pytest(tmp_path, *asked, "--portakernel-emulate=amd:gfx942", "-k", "one and element", "-v")
    assert status == 0, text
    assert re.search(r"add\[one element, x=float32, y=float32\] PASSED", text)
    status, text = run_pytest(tmp_path, *asked, "--portakernel-emulate=nvidia:sm_90")
    assert status == pytest.ExitCode.USAGE_ERROR
    assert "ERROR: --portakernel-emulate: nvidia:sm_90 is not emulated; these are: amd:gfx90a, " in text
