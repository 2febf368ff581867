"""One call at a time is copied and judged; the others run what they run without, and nothing fails in their callers."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import pytest
import torch

from portakernel.calling.arming import Armed
from portakernel.claims.capability import CannotRun, ReasonCode, Rejection
from portakernel.errors import ShadowWarning
from portakernel.tuning.record import Verdict

X, Y = torch.arange(32.0).reshape(4, 8), torch.ones(4, 8)


def look(planted: Any, sampler: Any, call: Any) -> Any:
    """A turn, a call, and the check of what was taken."""
    planted.clock.now += 1.0
    sampler.turn()
    result = call()
    sampler.check_waiting()
    return result


def row(planted: Any, kernel: str = "planted.add") -> Any:
    (found,) = [one for one in planted.counts.report().kernels if one.kernel == kernel]
    return found


def row_count(planted: Any) -> int:
    return sum(one.checked + sum(one.skipped.values()) for one in planted.counts.report().kernels)


def test_a_kernel_that_goes_wrong_after_its_first_call_is_found_within_ten_samples(planted):
    planted.right = 1
    planted.add(X, Y)  # right
    sampler = planted.sampler()
    with warnings.catch_warnings(record=True, action="always") as warned:
        while planted.counts.report().mismatched == 0 and row_count(planted) < 10:
            look(planted, sampler, lambda: planted.add(X, Y))
    assert (row(planted).checked, row(planted).mismatched) == (1, 1)
    (message,) = [str(one.message) for one in warned]
    request = planted.placement().decision.request
    assert message == (
        f"planted.add gave a wrong result for {request}: sum: 1 of 32 elements differ; the worst, at [3, 7]: got 33.0,"
        " want 32.0, 2.621e+05 ulp off, 0.75 ulp allowed; it goes on serving: deny it, or have it demoted with"
        " on_mismatch (policy.yaml:2)"
    )


def test_a_right_kernel_is_right_each_time(planted):
    planted.right = 100
    planted.add(X, Y)
    sampler = planted.sampler()
    for _ in range(5):
        look(planted, sampler, lambda: planted.add(X, Y))
    assert (row(planted).checked, row(planted).mismatched, dict(row(planted).skipped)) == (5, 0, {})


def test_a_mismatch_warns_once_for_a_kernel_and_kind_of_call(planted):
    planted.right = 0
    planted.add(X, Y)
    sampler = planted.sampler()
    with warnings.catch_warnings(record=True, action="always") as warned:
        for _ in range(4):
            look(planted, sampler, lambda: planted.add(X, Y))
    assert [one.category for one in warned] == [ShadowWarning]
    assert row(planted).mismatched == 4


def test_a_call_that_is_not_looked_at_runs_the_identical_object(planted):
    planted.right = 100
    planted.add(X, Y)
    placement, sampler = planted.placement(), planted.sampler()
    before = placement.run
    sampler.turn()
    assert isinstance(placement.run, Armed)
    planted.add(X, Y)
    assert placement.run is before
    planted.add(X, Y)
    sampler.check_waiting()
    assert (row(planted).checked, placement.run) == (1, before)
    sampler.turn()
    sampler.disarm()
    assert placement.run is before


def test_one_placement_is_armed_at_a_time_and_all_have_their_turn(planted):
    planted.right = 100
    weight = torch.ones(8)

    def both() -> None:
        planted.add(X, Y)
        planted.rms_norm(X, weight)

    both()
    sampler = planted.sampler()
    for _ in range(4):
        sampler.turn()
        placements = [planted.placement(op) for op in ("add", "rms_norm")]
        assert sum(isinstance(placement.run, Armed) for placement in placements) == 1
        both()
        sampler.check_waiting()
    assert [(one.kernel, one.checked) for one in planted.counts.report().kernels] == [
        ("planted.add", 2), ("planted.rms_norm", 2),
    ]  # fmt: skip


def test_the_reference_is_not_looked_at(planted):
    with planted.dispatcher.without_contexts():
        planted.add(X, Y, kernel="reference.add")
    sampler = planted.sampler()
    look(planted, sampler, lambda: planted.add(X, Y, kernel="reference.add"))
    assert planted.counts.report().kernels == ()


@pytest.mark.parametrize("wrong", [False, True])
def test_what_out_holds_is_judged_also_where_it_is_an_argument(planted, wrong):
    planted.right = 0 if wrong else 100
    out = torch.empty_like(X)
    planted.add(X, Y, out=out)
    planted.add(out, Y, out=out)  # has a placement of its own
    sampler = planted.sampler()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ShadowWarning)
        look(planted, sampler, lambda: planted.add(X, Y, out=out))
        for _ in range(3):
            x = X.clone()
            look(planted, sampler, lambda x=x: planted.add(x, Y, out=x))
    found = row(planted)
    # of four turns each placement had two, and the first of the one that goes over an argument came to no call
    assert (found.checked, found.mismatched, found.skipped) == (3, 3 if wrong else 0, {})


@pytest.mark.parametrize("wrong", [False, True])
def test_an_op_that_writes_its_arguments_is_judged_by_what_stands_there(planted, wrong):
    planted.right = 0 if wrong else 100
    keys, values = torch.randn(3, 2, 8), torch.randn(3, 2, 8)
    key_cache, value_cache = torch.zeros(4, 16, 2, 8), torch.zeros(4, 16, 2, 8)
    slots = torch.tensor([1, 17, 40])

    def call() -> None:
        planted.write_kv_cache(keys, values, key_cache, value_cache, slots)

    call()
    sampler = planted.sampler()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ShadowWarning)
        look(planted, sampler, call)
    found = row(planted, "planted.write_kv_cache")
    assert (found.checked, found.mismatched, found.skipped) == (1, int(wrong), {})


def test_calls_that_record_gradients_are_passed_over_and_said(planted):
    planted.right = 100
    planted.add(X, Y)
    placement, sampler = planted.placement(), planted.sampler()
    sampler.turn()
    # as a program that calls below autograd would: the placement itself is given a tensor that requires gradients
    placement.launch(X.clone().requires_grad_(), Y, None)
    sampler.check_waiting()
    assert row(planted).skipped == {"gradient": 1}
    trained = X.clone().requires_grad_()
    look(planted, sampler, lambda: planted.add(trained, Y))  # has a placement of its own, which is no candidate
    assert row(planted).checked == 0


def test_calls_in_a_capture_are_passed_over_and_said(planted, monkeypatch):
    planted.right = 100
    planted.add(X, Y)
    sampler = planted.sampler()
    monkeypatch.setattr("portakernel.shadow.sample.is_capturing", lambda: True)
    look(planted, sampler, lambda: planted.add(X, Y))
    assert row(planted).skipped == {"captured": 1}
    monkeypatch.undo()
    look(planted, sampler, lambda: planted.add(X, Y))
    assert row(planted).checked == 1


def test_calls_with_more_bytes_are_passed_over_and_said(planted):
    planted.right = 100
    planted.add(X, Y)
    few = planted.sampler(bytes=3 * 128 - 1)
    look(planted, few, lambda: planted.add(X, Y))
    assert row(planted).skipped == {"bytes": 1}
    enough = planted.sampler(bytes=3 * 128)
    look(planted, enough, lambda: planted.add(X, Y))
    assert row(planted).checked == 1


def test_nothing_is_armed_while_checks_have_had_their_share(planted):
    planted.right = 100
    planted.add(X, Y)

    def slow(*_: Any) -> tuple[Verdict, str]:
        planted.clock.now += 0.25
        return Verdict.RIGHT, ""

    sampler = planted.sampler(judging=slow, share=0.01)
    before = planted.placement().run
    look(planted, sampler, lambda: planted.add(X, Y))
    assert row(planted).checked == 1
    for _ in range(5):
        planted.clock.now += 1.0
        sampler.turn()
        assert planted.placement().run is before
    assert row(planted).skipped == {"share": 5}
    planted.clock.now += 60.0  # 0.25 s spent and 0.25 s expected are 1 % of 50 s
    look(planted, sampler, lambda: planted.add(X, Y))
    assert row(planted).checked == 2
    assert planted.counts.report().seconds == pytest.approx(0.5)


def test_what_the_checker_raises_is_counted_and_told_once_and_never_raised_into_the_call(planted):
    planted.right = 100
    planted.add(X, Y)

    def broken(*_: Any) -> tuple[Verdict, str]:
        raise RuntimeError("no truth today")

    sampler = planted.sampler(judging=broken)
    with warnings.catch_warnings(record=True, action="always") as warned:
        for _ in range(3):
            result = look(planted, sampler, lambda: planted.add(X, Y))
    assert torch.equal(result, X + Y)
    text = "shadow verification of planted.add failed: RuntimeError: no truth today"
    assert [str(one.message) for one in warned] == [text]
    assert row(planted).skipped == {"error": 3}
    assert planted.counts.report().errors == ("planted.add: RuntimeError: no truth today",)


@pytest.mark.parametrize("step", ["before", "after"])
def test_what_fails_around_the_call_is_counted_and_the_call_has_its_result(planted, monkeypatch, step):
    planted.right = 100
    planted.add(X, Y)
    sampler = planted.sampler()

    def fails(*_: Any) -> None:
        raise torch.OutOfMemoryError("no memory for a copy")

    monkeypatch.setattr(f"portakernel.shadow.sample.Sample.{step}", fails)
    result = look(planted, sampler, lambda: planted.add(X, Y))
    assert torch.equal(result, X + Y)
    assert row(planted).skipped == {"error": 1}


def test_a_kernel_s_own_error_is_the_caller_s_and_the_placement_is_restored(planted, monkeypatch):
    planted.right = 100
    planted.add(X, Y)
    before, sampler = planted.placement().run, planted.sampler()

    def fails(result: Any) -> None:
        raise RuntimeError("the kernel's own")

    monkeypatch.setattr(planted, "spoil", fails)
    sampler.turn()
    with pytest.raises(RuntimeError, match=r"^the kernel's own$"):
        planted.add(X, Y)
    assert planted.placement().run is before
    assert sampler.check_waiting() == 0


def test_a_kernel_that_declines_the_looked_at_call_is_passed_over_as_ever(planted, monkeypatch):
    planted.right = 100
    planted.add(X, Y)
    sampler = planted.sampler()

    def declines(result: Any) -> None:
        raise CannotRun(Rejection(ReasonCode.CANNOT_RUN, "not today"))

    monkeypatch.setattr(planted, "spoil", declines)
    sampler.turn()
    with pytest.warns(match=r"^add: planted.add cannot serve \(cannot_run: not today\); .* does$"):
        result = planted.add(X, Y)
    assert torch.equal(result, X + Y)
    assert row(planted).skipped == {"declined": 1}


def test_a_size_that_is_declined_while_armed_stays_declined_and_armed_no_longer(planted, monkeypatch):
    planted.right = 100
    planted.add(X, Y)
    sampler, own = planted.sampler(), planted.spoil

    def picky(result: Any) -> Any:
        if result.numel() == 32:
            raise CannotRun(Rejection(ReasonCode.LIMIT, "not that many", "M"))
        return own(result)

    monkeypatch.setattr(planted, "spoil", picky)
    placement = planted.placement()
    sampler.turn()
    with pytest.warns(match=r"not that many"):
        planted.add(X, Y)
    sampler.turn()
    for _ in range(3):
        planted.add(X, Y)
        planted.add(X[:2], Y[:2])
    sampler.check_waiting()
    assert not isinstance(placement.run, Armed)
    assert next(iter(placement.refused)) == ("M", 32)


def test_of_many_threads_one_has_its_call_taken(planted):
    planted.right = 1000
    planted.add(X, Y)
    sampler, begin = planted.sampler(), threading.Barrier(4)

    def work() -> None:
        begin.wait()
        for _ in range(50):
            planted.add(X, Y)

    for _ in range(5):
        sampler.turn()
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sampler.check_waiting() == 1
    assert (row(planted).checked, row(planted).mismatched) == (5, 0)


def test_calls_in_inference_mode_and_no_grad_are_judged(planted):
    planted.right = 100
    x = X.clone().requires_grad_()
    with torch.inference_mode():
        planted.add(X, Y)
    sampler = planted.sampler()
    with torch.inference_mode():
        look(planted, sampler, lambda: planted.add(X, Y))
    with torch.no_grad():
        look(planted, sampler, lambda: planted.add(x, Y))
    assert row(planted).checked == 2
    assert row(planted).mismatched == 0


def test_a_result_that_is_written_over_later_was_copied_before(planted):
    planted.right = 100
    planted.add(X, Y)
    sampler = planted.sampler()
    sampler.turn()
    x = X.clone()
    result = planted.add(x, Y)
    x.zero_()
    result.zero_()
    sampler.check_waiting()
    assert (row(planted).checked, row(planted).mismatched) == (1, 0)


def test_what_the_reference_cannot_say_is_skipped_and_no_mismatch(planted):
    planted.right = 0
    planted.add(X, Y)
    sampler = planted.sampler(judging=lambda *_: (Verdict.UNJUDGED, "too much"))
    look(planted, sampler, lambda: planted.add(X, Y))
    assert (row(planted).checked, row(planted).mismatched, row(planted).skipped) == (0, 0, {"unjudged": 1})


def test_a_kernel_whose_checks_the_share_has_no_room_for_keeps_no_other_waiting(planted, monkeypatch):
    from portakernel.shadow.candidates import Candidate

    planted.right = 100
    monkeypatch.setattr(Candidate, "work", property(lambda self: 10**15 if self.op == "rms_norm" else 1))
    planted.add(X, Y)
    sampler = planted.sampler()
    for _ in range(4):
        for _ in range(6):
            planted.rms_norm(X, Y[0])  # called more often, and looked at by nobody
        look(planted, sampler, lambda: planted.add(X, Y))
    assert [(one.op, one.checked) for one in planted.counts.report().kernels] == [("add", 4)]
