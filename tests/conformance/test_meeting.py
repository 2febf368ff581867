"""Calls of two threads that meet at every point: what a kernel keeps between calls is found each time."""

from __future__ import annotations

import functools
import re
import sys
import threading
import time

import pytest
import torch

from portakernel_kit.conformance.meeting import Meeting


def kept_by_shape(kernel):
    """Computes in a buffer that all calls of a shape share."""
    buffers = {}

    def add(x, y, *, out=None):
        buffer = buffers.setdefault(x.shape, torch.empty_like(x, memory_format=torch.contiguous_format))
        buffer.copy_(x)
        buffer.add_(y)
        return buffer.clone() if out is None else out.copy_(buffer)

    return add


def kept_within_a_line(kernel):
    buffers = {}

    def add(x, y, *, out=None):
        total = buffers.setdefault(x.shape, torch.empty(x.shape, dtype=x.dtype)).copy_(x).add_(y).clone()
        return total if out is None else out.copy_(total)

    return add


def kept_by_a_helper(kernel):
    """The first of two buffers is a call's own, and the helper's lines have run by the time of the second."""
    spare = []

    def buffer(x, own):
        found = torch.empty_like(x) if own or not spare else spare[0]
        spare.append(found)
        return found.copy_(x)

    def add(x, y, *, out=None):
        total = buffer(x, True).clone() + buffer(y, False)
        return total if out is None else out.copy_(total)

    return add


def number_kept(kernel):
    """A setting of the module, which holds one of the call's numbers."""
    state = {}

    def add(x, y, *, out=None):
        state["largest"] = float(x.abs().max())
        scaled = x / state["largest"]
        total = scaled * state["largest"] + y
        return total if out is None else out.copy_(total)

    return add


def parameter_kept(kernel):
    """A setting of the module, which calls with equal parameters set alike."""
    state = {}

    def rms_norm(x, weight, *, eps, **others):
        state["eps"] = eps
        return kernel(x, weight, eps=state["eps"], **others)

    return rms_norm


def kept_by_thread(kernel):
    local = threading.local()

    def add(x, y, *, out=None):
        local.buffer = x.clone()
        local.buffer.add_(y)
        return local.buffer.clone() if out is None else out.copy_(local.buffer)

    return add


def behind_a_lock(kernel):
    lock, computed = threading.Lock(), kept_by_shape(kernel)

    def add(x, y, *, out=None):
        with lock:
            return computed(x, y, out=out)

    return add


@pytest.fixture
def threads_of(make_suite):
    """What the aspect ``threads`` says of a kernel in whose place this one stands."""

    def found(wrap, name="torch.add"):
        suite = make_suite(name, forward=functools.cache(wrap))  # one kernel for all trials
        (unit,) = (unit for unit in suite.units() if unit.kind == "repetition")
        (result,) = (result for result in suite.run(unit) if result.aspect == "threads")
        return result

    return found


@pytest.mark.parametrize("fault", [kept_by_shape, kept_within_a_line, kept_by_a_helper, number_kept])
def test_what_calls_share_is_found_each_time(threads_of, fault):
    found = [threads_of(fault) for _ in range(50 if fault is kept_by_shape else 10)]
    assert {result.status for result in found} == {"failed"}
    assert len({result.detail for result in found}) == 1
    assert re.match(
        r"a call gave other bits than alone, when another thread made one while it was in line \d+ of"
        r" conformance/test_meeting\.py: a buffer or a setting is shared between calls",
        found[0].detail,
    )


def test_a_setting_is_found_by_a_call_with_another_parameter(threads_of):
    detail = threads_of(parameter_kept, "reference.rms_norm").detail
    assert "in line " in detail


@pytest.mark.parametrize("right", [lambda kernel: kernel, kept_by_thread, behind_a_lock])
def test_what_threads_do_not_share_passes(threads_of, right):
    assert threads_of(right).status == "passed"


def test_the_line_is_that_behind_which_another_call_does_harm(threads_of):
    first = kept_by_shape.__code__.co_firstlineno
    # the first buffer is the other thread's as well from the line on which it was taken
    assert f"in line {first + 6} of conformance/test_meeting.py" in threads_of(kept_by_shape).detail


def test_what_the_other_call_raises_is_raised_and_tracing_is_as_before():
    def other():
        raise IndexError("no third dimension")

    def call():
        try:
            return sorted([2, 1])
        except IndexError:
            return "caught"

    before = sys.gettrace()
    meeting = Meeting(other, lambda: None)
    with pytest.raises(IndexError, match="no third dimension"), meeting.at_every_point():
        call()
    assert sys.gettrace() is before
    assert {file for file, _ in meeting.places} >= {__file__}


def test_a_call_is_met_once_at_each_point_or_at_one_alone():
    def call():
        total = 0
        for number in range(3):
            total += abs(number)
        return total

    met = []
    meeting = Meeting(lambda: met.append("other"), lambda: met.append("before"))
    with meeting.at_every_point():
        call()
    inside = [line for file, line in meeting.places if line <= call.__code__.co_firstlineno + 4]
    assert len(met) == 2 * len(meeting.places)
    assert len(inside) >= 5
    alone = []
    with Meeting(lambda: alone.append("other"), lambda: None, only=2).at_every_point():
        call()
    assert alone == ["other"]


def test_a_call_that_waits_for_a_lock_goes_on_when_it_can():
    lock, taken = threading.Lock(), []

    def call():
        with lock:
            taken.append(time.monotonic())
            taken.append(time.monotonic())

    with Meeting(call, lambda: None).at_every_point():
        call()
    assert len(taken) > 2
    assert not lock.locked()
