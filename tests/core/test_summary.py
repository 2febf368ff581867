"""The line that a process tells at its end, ``PORTAKERNEL_LOG=summary``."""

from __future__ import annotations

import os
import re
from collections import Counter

import pytest

from portakernel import summary
from portakernel.calling.caller import OpCaller
from portakernel.contracts import contract
from portakernel.summary import Summary, sentence

ADD = ("add", "triton.add", "nvidia:sm_90", ())
FALLEN = ("add", "reference.add", "nvidia:sm_90", ("triton.add", "torch.add"))
NORM = ("rms_norm", "torch.rms_norm", "amd:gfx942", ())

# Each of these calls `add` a number of times that is told apart in the sums.
PROGRAM = """
import multiprocessing, os, sys, warnings
import torch
from portakernel import ops

x = torch.ones(4)

def add(times):
    for _ in range(times):
        ops.add(x, x)

def nested():
    add(20)
    start(add, 300)

def start(work, *arguments):
    process = multiprocessing.get_context("fork").Process(target=work, args=arguments)
    process.start()
    process.join()

warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of every fork beside threads
"""


@pytest.fixture
def told(python):
    """The exit status and stderr of ``PROGRAM`` with ``program`` after it."""

    def run(program: str, log: str | None = "summary") -> tuple[int, str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PORTAKERNEL_")}
        environment |= {"PORTAKERNEL_LOG": log} if log is not None else {}
        done = python("-c", PROGRAM + program, env=environment)
        return done.returncode, done.stderr

    return run


def test_the_line_says_which_kernels_served_how_many_calls_most_first():
    calls = {ADD: 1200, FALLEN: 40, NORM: 1}
    why = {("add", "triton.add"): ("layout", "dtype")}
    assert sentence(calls, why) == (
        "1241 calls: add by triton.add 1200 (nvidia:sm_90), reference.add 40 (nvidia:sm_90, fallback from triton.add:"
        " layout, dtype and torch.add); rms_norm by torch.rms_norm 1 (amd:gfx942)"
    )
    assert sentence({NORM: 1}, {}) == "1 call: rms_norm by torch.rms_norm 1 (amd:gfx942)"


def test_the_reasons_are_those_of_the_calls_that_fell_back(world, monkeypatch):
    limit = {"M": {"max": 4}}
    world.plugin("p", {"priority": 20, "limits": limit}, {"name": "other"})
    dispatcher = world.dispatcher()
    caller = OpCaller(contract("add"), dispatcher)
    policy = dispatcher.policy()
    for rows in (2, 8):
        request = world.request(present=True, shapes={"x": (rows,)})
        with monkeypatch.context() as patched:
            patched.setattr("portakernel.calling.caller.launcher", lambda *_: print)
            patched.setattr("warnings.warn", lambda *_, **__: None)
            caller.table.remember(rows, caller.place(request, policy))
    assert summary.reasons([caller]) == {("add", "p.add"): ("limit",)}


def test_a_process_tells_at_its_end_and_each_forked_child_of_its_own_calls(told):
    status, text = told("add(1)\nstart(add, 4)\nstart(nested)\nstart(int)\n")
    assert status == 0
    lines = re.sub(r"process \d+", "process N", text).splitlines()
    assert sorted(re.search(r"(\d+) call", line)[0] for line in lines) == ["1 call", "20 call", "300 call", "4 call"]
    assert re.fullmatch(r"portakernel: 1 call: add by torch\.add 1 \(cpu:\w+\)", lines[-1])
    assert all(line.startswith("portakernel (process N): ") for line in lines[:-1])


def test_a_child_that_is_forked_without_multiprocessing_tells_too(told):
    program = """
add(1)
child = os.fork()
if child == 0:
    add(7)
    sys.exit(0)
os.waitpid(child, 0)
"""
    status, text = told(program)
    assert status == 0
    assert [re.search(r"(\d+) call", line)[1] for line in text.splitlines()] == ["7", "1"]


@pytest.mark.parametrize("program", ["import portakernel\nportakernel.explain('add', x, x)\n", "start(int)\n"])
def test_without_a_call_nothing_is_told(told, program):
    assert told(program) == (0, "")


@pytest.mark.parametrize("log", [None, ""])
def test_who_does_not_ask_is_told_nothing_and_pays_nothing(told, log):
    program = "add(1)\nassert 'portakernel.summary' not in sys.modules\n"
    assert told(program, log) == (0, "")


def test_another_value_is_refused_with_what_is_accepted(told):
    status, text = told("add(1)\n", "everything")
    assert status == 1
    assert text.endswith("ConfigError: PORTAKERNEL_LOG is 'everything'; known: summary\n")


@pytest.mark.parametrize("stream", [None, "closed"])
def test_a_process_without_stderr_ends_in_peace(told, stream):
    put = "sys.stderr = None" if stream is None else "sys.stderr.close()"
    assert told(f"add(1)\n{put}\n") == (0, "")


def test_what_goes_wrong_while_telling_is_told_in_a_line_to_a_process_that_ends(capsys):
    def fail():
        raise RuntimeError("no counts")

    Summary(fail).tell()
    assert capsys.readouterr().err == "portakernel: no summary: RuntimeError: no counts\n"


def test_it_is_told_once(monkeypatch, capsys):
    monkeypatch.setattr(summary, "lines", lambda callers: Counter({("add", "p.add", "acme:acme1", ()): 3}))
    line = Summary(list)
    line.tell()
    line.tell()
    assert capsys.readouterr().err == "portakernel: 3 calls: add by p.add 3 (acme:acme1)\n"
