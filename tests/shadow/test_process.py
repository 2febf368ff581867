"""In a process: the thread gives turns and judges, goes on in a forked child, and ends with the interpreter."""

from __future__ import annotations

import os
from typing import Any

import pytest

# `add` by torch's own operator, looked at as often as may be.
PROGRAM = """
import os, sys, threading, warnings
import torch
import portakernel
from portakernel import ops
from portakernel.shadow import process

warnings.simplefilter("ignore", DeprecationWarning)
x = torch.ones(8)

def call_until(enough):
    for _ in range(200_000):
        ops.add(x, x)
        if enough(portakernel.shadow.report()):
            return True
        threading.Event().wait(0.001)
    return False
"""


@pytest.fixture
def run(python, tmp_path) -> Any:
    """What a program printed, and said, under a policy."""

    def run_program(program: str, policy: str = "shadow: {every: 1ms, share: 1}", **more: str) -> tuple[str, str]:
        file = tmp_path / "policy.yaml"
        file.write_text(f"schema_version: 1\n{policy}\n", encoding="utf-8")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PORTAKERNEL_")}
        done = python("-c", PROGRAM + program, env={**environment, "PORTAKERNEL_POLICY": str(file), **more})
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr

    return run_program


def test_a_policy_file_has_calls_looked_at_from_the_first_op_on(run):
    printed, said = run("""
assert not process._process.worker
print(call_until(lambda report: report.checked >= 3))
report = portakernel.shadow.report()
print(report.state, report.mismatched, report.errors, [one.kernel for one in report.kernels])
""")
    assert (printed, said) == (
        "True\nshadow verification is on (policy.yaml:2) 0 () ['torch.add']\n", ""
    )  # fmt: skip


def test_a_forked_child_looks_at_its_own_calls(run):
    printed, said = run("""
import multiprocessing
call_until(lambda report: report.checked >= 1)

def child():
    before = portakernel.shadow.report().checked
    print(call_until(lambda report: report.checked >= before + 2), flush=True)

forked = multiprocessing.get_context("fork").Process(target=child)
forked.start()
forked.join()
print(forked.exitcode, call_until(lambda report: report.checked >= 5))
""")
    assert (printed, said) == ("True\n0 True\n", "")


def test_a_warning_of_the_thread_is_told_where_warnings_are_errors(run):
    printed, said = run("""
sys.modules["portakernel_kit.shadow"] = None  # the judge cannot be loaded
warnings.simplefilter("error", portakernel.errors.ShadowWarning)
print(call_until(lambda report: report.skipped.get("error", 0) >= 2))
""")
    assert printed == "True\n"
    why = "ModuleNotFoundError: import of portakernel_kit.shadow halted; None in sys.modules"
    assert said == f"ShadowWarning: shadow verification of torch.add failed: {why}\n"


def test_it_ends_with_the_interpreter_also_while_a_check_is_under_way(run):
    printed, said = run("""
import portakernel_kit.shadow
judged, begun, judge = [], threading.Event(), portakernel_kit.shadow.judge

def slow(*arguments):
    begun.set()
    threading.Event().wait(0.3)
    judged.append(judge(*arguments)[0].value)
    print(judged, flush=True)
    return judge(*arguments)

portakernel_kit.shadow.judge = slow
for _ in range(10_000):
    ops.add(x, x)
    if begun.wait(0.001):
        break
print("done", flush=True)
""")
    assert (printed, said) == ("done\n['right']\n", "")


def test_load_policy_begins_and_ends_it(run):
    program = """
import tempfile
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "shadow.yaml")
    with open(path, "w") as file:
        file.write("schema_version: 1\\nshadow: {every: 1h}\\n")
    ops.add(x, x)
    print(process._process.worker is None)
    portakernel.load_policy(path)
    print(process._process.worker.sampler.wishes.every_s)
    portakernel.load_policy(None)
    print(process._process.worker)
"""
    assert run(program, policy="prefer: torch") == ("True\n3600.0\nNone\n", "")
