"""A fork at any moment gives a child that works: also in another thread's first call, and while a hook hangs."""

from __future__ import annotations

import os
import signal
import threading
import time

import fault_fakes as fakes
import pytest
import torch

CHILD_S = 20


def _child(run):
    """What ``run`` returns in a forked child, as text; why it did not, where it did not."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(CHILD_S)
        try:
            said = repr(run())
        except BaseException as error:  # noqa: BLE001 - the parent says what it was
            said = f"{type(error).__name__}: {error}"
        os.write(write, said.encode()[:4000])
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        said = answer.read()
    _, status = os.waitpid(child, 0)
    return said if status == 0 else f"signal {os.WTERMSIG(status)}: {said}"


def _forks_in_a_first_call(delay_s):
    torch.add(torch.ones(3), torch.full((3,), 2.0)).tolist()  # a fork in torch's own first call is torch's to bear
    first: list[object] = []
    thread = threading.Thread(target=lambda: first.append(fakes.call()), daemon=True)
    thread.start()
    time.sleep(delay_s)
    said = _child(fakes.call)
    thread.join(CHILD_S)
    return [said, first]


# From before anything is imported to after the call has ended, which takes a second or two on a busy machine.
MOMENTS = [round(0.0005 * 1.34**n, 4) for n in range(30)]


@pytest.mark.parametrize("delay_s", MOMENTS)
def test_a_fork_during_another_threads_first_call_gives_a_child_that_works(fault, delay_s):
    outcome = fault(_forks_in_a_first_call, delay_s)
    assert outcome.returned == ["[3.0, 3.0, 3.0]", [[3, 3, 3]]], outcome.stderr


HANGS = "import threading\n" + fakes.HOOK.format("portakernel_kernels()", "threading.Event().wait()")


def _forks_while_it_hangs(source, bound_s):
    from portakernel.host import forks

    forks.LONGEST_S = bound_s
    fakes.write("ill", hooks=["portakernel_kernels"], source=source)
    threading.Thread(target=fakes.call, daemon=True).start()
    while not any("ill" in thread.name for thread in threading.enumerate()):
        time.sleep(0.01)
    time.sleep(0.2)
    began = time.monotonic()
    said = _child(lambda: [fakes.call(), [fault[2] for fault in fakes.faults()]])
    return {"said": said, "took": time.monotonic() - began}


@pytest.mark.parametrize("where", ["hook", "import"])
def test_a_fork_while_a_plugin_hangs_waits_within_a_bound_and_the_child_works(fault, where):
    source = HANGS if where == "hook" else "import threading\nthreading.Event().wait()\n"
    outcome = fault(_forks_while_it_hangs, source, 0.5, env={"PORTAKERNEL_PATIENCE_S": "3"})
    reason = "portakernel_kernels did not return within 3 s, and rests in this process"
    if where == "import":
        reason = "importing fake_ill raised PluginError: another thread was importing it when this process was forked,"
        reason += " and nobody can end that import"
    assert outcome.returned["said"] == f"[[3.0, 3.0, 3.0], [{reason!r}]]", outcome.stderr
    assert outcome.returned["took"] < 20


def _a_hook_that_forks():
    source = "import os\n" + fakes.HOOK.format(
        "portakernel_kernels()",
        "child = os.fork()\n    if child == 0: os._exit(7)\n"
        "    assert os.waitpid(child, 0)[1] == 7 << 8\n    return []",
    )
    fakes.write("ill", hooks=["portakernel_kernels"], source=source)
    began = time.monotonic()
    result = fakes.call()
    return {"result": result, "faults": fakes.faults(), "quick": time.monotonic() - began < 8}


def test_a_hook_that_forks_does_not_wait_for_itself(fault):
    outcome = fault(_a_hook_that_forks)
    assert outcome.returned == {"result": [3, 3, 3], "faults": [], "quick": True}, outcome.stderr


def _children_of_children():
    fakes.call()
    return _child(lambda: _child(lambda: _child(fakes.call)))


def test_children_of_children_work(fault):
    outcome = fault(_children_of_children)
    assert "[3.0, 3.0, 3.0]" in outcome.returned, outcome.stderr


def _many_threads_and_forks():
    torch.ones(3)
    barrier = threading.Barrier(5)
    results: list[object] = []

    def call():
        barrier.wait()
        results.append(fakes.call())

    threads = [threading.Thread(target=call, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    barrier.wait()
    said = [_child(fakes.call) for _ in range(4)]
    for thread in threads:
        thread.join(CHILD_S)
    return [said, results]


def test_four_threads_in_their_first_calls_and_four_forks(fault):
    assert fault(_many_threads_and_forks).returned == [["[3.0, 3.0, 3.0]"] * 4, [[3, 3, 3]] * 4]
