"""What the fault suite rests on: a process of its own for each fault, judged by how it ends."""

from __future__ import annotations

import ctypes
import os
import sys
import time

import pytest


def _tells_where_it_is(text):
    print("out")
    print("err", file=sys.stderr)
    return {"text": text, "pid": os.getpid(), "torch": "torch" in sys.modules, "value": os.environ["PORTAKERNEL_LOG"]}


def _crashes():
    ctypes.string_at(0)


def _raises():
    raise ValueError("as it must")


def _hangs():
    time.sleep(600)


def _serves_a_call():
    import torch

    from portakernel import ops

    return ops.add(torch.ones(3), torch.ones(3)).tolist()


def test_a_fault_runs_in_a_process_of_its_own(fault):
    outcome = fault(_tells_where_it_is, "x", env={"PORTAKERNEL_LOG": "summary"})
    assert outcome.returned["pid"] != os.getpid()
    assert outcome.returned | {"pid": 0} == {"text": "x", "pid": 0, "torch": True, "value": "summary"}
    assert (outcome.status, outcome.stdout) == (0, "out\n")
    assert "err\n" in outcome.stderr


def test_a_crash_and_an_exception_are_told_apart(fault):
    assert fault(_crashes).status < 0
    outcome = fault(_raises)
    assert outcome.status == 1
    assert outcome.stderr.endswith("ValueError: as it must\n")


def test_one_that_hangs_fails_its_test(fault):
    with pytest.raises(pytest.fail.Exception, match=r"_hangs was still running after 0\.5 s"):
        fault(_hangs, seconds=0.5)


def test_the_ops_work_in_it(fault):
    assert fault(_serves_a_call).returned == [2, 2, 2]
