"""``portakernel.warmup``: afterwards calls decide nothing; and what it says of them."""

from __future__ import annotations

import contextlib
import re

import pytest
import torch

import portakernel
from portakernel import ops, runtime
from portakernel.claims.request import Phase
from portakernel.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    CaptureError,
    NoKernelError,
    UnknownNameError,
    WarmupError,
)
from portakernel.offline.job import Job
from portakernel.offline.outcome import Outcome
from portakernel.warming import prepared_calls, rehearsal


@pytest.fixture(autouse=True)
def quick():
    """Kernels of torch operators, which nothing has to be built for."""
    with portakernel.policy(use=("torch.add", "torch.rms_norm_cpu"), deny="inductor"):
        yield


@pytest.fixture
def warm(monkeypatch: pytest.MonkeyPatch):
    """A context in which nothing may be decided."""

    @contextlib.contextmanager
    def nothing_new():
        def decide(request, *_arguments):
            raise AssertionError(f"decided anew: {request}")

        with monkeypatch.context() as patch:
            patch.setattr(runtime.dispatcher(), "decide", decide)
            yield

    return nothing_new


def served(found) -> list[tuple[str, str, str, int]]:
    return sorted((c.request.op, str(c.request.phase), c.kernel, c.calls) for c in found.calls)


def test_a_call_like_the_example_decides_nothing_any_more(warm):
    x = torch.randn(3, 4)
    found = portakernel.warmup("add", x, x)
    assert served(found) == [("add", "inference", "torch.add", 1)]
    assert (found.settled, found.built, found.declined, found.compiled) == (True, (), (), ())
    with warm():
        assert torch.equal(ops.add(x, x), 2 * x)


def test_training_is_warm_with_its_backward(warm):
    x, weight = torch.randn(5, 8, requires_grad=True), torch.ones(8, requires_grad=True)
    with portakernel.use("reference.rms_norm"):
        found = portakernel.warmup("rms_norm", x, weight)
        assert served(found) == [
            ("rms_norm", "backward", "reference.rms_norm", 1),
            ("rms_norm", "training", "reference.rms_norm", 1),
        ]
        assert x.grad is None
        with warm():
            ops.rms_norm(x, weight).sum().backward()


def test_a_call_in_words_is_the_same_as_one_by_example(warm):
    found = portakernel.warmup("add", dtype="float16", shape={"x": (2, 3)}, device="cpu", kernel="reference")
    assert served(found) == [("add", "inference", "reference.add", 1)]
    x = torch.randn(2, 3, dtype=torch.float16)
    with warm():
        assert torch.equal(ops.add(x, x, kernel="reference"), 2 * x)


def test_several_calls_in_words_with_training_even_without_gradients_here():
    with torch.no_grad():
        found = portakernel.warmup(
            [
                portakernel.Call("add", "float32", {"x": (2, 3)}, device="cpu"),
                portakernel.Call(
                    "rms_norm",
                    {"x": "bfloat16", "weight": "float32"},
                    {"x": (2, 8)},
                    device="cpu",
                    training=True,
                    kernel="reference",
                    parameters={"eps": 1e-3},
                ),
            ]
        )
    assert served(found) == [
        ("add", "inference", "torch.add", 1),
        ("rms_norm", "backward", "reference.rms_norm", 1),
        ("rms_norm", "training", "reference.rms_norm", 1),
    ]
    (training,) = (call.request for call in found.calls if call.request.phase == "training")
    assert training.dtypes == {"x": "bfloat16", "weight": "float32"}
    assert training.values["eps"] == 1e-3


def test_every_call_of_a_function_is_warm_backward_included(warm):
    weight = torch.ones(8)

    def step(x: torch.Tensor, *, times: int) -> torch.Tensor:
        for _ in range(times):
            x = ops.add(x, ops.rms_norm(x, weight, kernel="reference"))
        x.sum().backward()
        return x

    x = torch.randn(2, 8, requires_grad=True)
    found = portakernel.warmup(step, x, times=3)
    assert found.settled
    assert served(found) == [
        ("add", "training", "torch.add", 3),
        ("rms_norm", "backward", "reference.rms_norm", 3),
        ("rms_norm", "training", "reference.rms_norm", 3),
    ]
    x = x.detach().requires_grad_()
    with warm():
        step(x, times=3)
    assert x.grad is not None


def test_a_plain_call_inside_a_function_is_a_hit_of_the_public_key(warm):
    x = torch.randn(2, 8, dtype=torch.bfloat16)
    portakernel.warmup(lambda: ops.add(x, x))
    with warm():
        ops.add(x, x)


def test_a_compiled_function_is_compiled_while_it_is_warmed_up(warm):
    weight, x = torch.ones(24), torch.randn(3, 24)

    @torch.compile(backend="aot_eager", fullgraph=True)
    def step(x: torch.Tensor) -> torch.Tensor:
        return ops.rms_norm(x, weight) * 2

    found = portakernel.warmup(step, x)
    assert served(found) == [("rms_norm", "inference", "torch.rms_norm_cpu", 1)]
    with warm():
        torch.testing.assert_close(step(x), torch.nn.functional.rms_norm(x, (24,), weight, 1e-6) * 2)


def test_a_function_that_makes_other_calls_each_time_is_told_of():
    x, table = torch.randn(2, 8), runtime.caller("add").table

    def forgetful() -> None:
        table.clear()
        ops.add(x, x)

    found = portakernel.warmup(forgetful)
    assert (found.settled, found.runs) == (False, 5)
    assert str(found).startswith("1 kind of call is warm after 5 runs in ")
    assert "; the last run still decided or compiled something new\n" in str(found)


def test_the_report_reads():
    x = torch.randn(3, 4)
    head = r"1 kind of call is warm after 2 runs in \d+\.\d s\n"
    assert re.fullmatch(
        head + r"  torch\.add  add on cpu:\w+ with x float32, y float32, M=12", str(portakernel.warmup("add", x, x))
    )
    answer = portakernel.warmup("add", x, x).to_json()
    (call,) = answer["calls"]
    assert (call["phase"], call["kernel"], call["calls"]) == ("inference", "torch.add", 1)


def test_a_representation_counts_kinds_of_calls():
    x = torch.ones(4)
    assert re.fullmatch(r"<Warmup settled after \d+ runs: 1 kind of calls>", repr(portakernel.warmup("add", x, x)))


@pytest.mark.parametrize(
    ("args", "named", "error", "message"),
    [
        (("ad",), {}, UnknownNameError, "unknown op 'ad'"),
        (
            ("add",),
            {},
            ArgumentTypeError,
            "takes the call's tensors, or dtype and shape; dtype and shape are not given",
        ),
        (("add",), {"dtype": "float32"}, ArgumentTypeError, "shape is not given"),
        (("add", 1, 2), {"shape": {}}, ArgumentTypeError, "warmup takes tensors, or shape, not both"),
        ((["add"],), {}, ArgumentTypeError, "a list of portakernel.Call alone"),
        ((3,), {}, ArgumentTypeError, "its first argument is 3"),
        (([], 3), {}, ArgumentTypeError, "a list of portakernel.Call alone"),
        (
            ("rms_norm",),
            {"dtype": "float32", "shape": {"weight": (8,)}, "device": "cpu"},
            ArgumentValueError,
            re.escape('rms_norm: give the shape of x: shape={"x": (A, B)}, or --shape x=AxB'),
        ),
    ],
)
def test_what_makes_no_call_is_refused(args, named, error, message):
    with pytest.raises(error, match=message):
        portakernel.warmup(*args, **named)


def test_a_named_kernel_that_cannot_serve_is_an_error():
    with pytest.raises(NoKernelError):
        portakernel.warmup("rms_norm", torch.ones(2, 8), torch.ones(8), kernel="triton")


def failing(monkeypatch, name: str) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("PassManager::run failed")

    monkeypatch.setattr(ops, name, fail, raising=False)


SEVERAL = [portakernel.Call(op, "float32", {"x": (2, 8)}, device="cpu") for op in ("add", "rms_norm")]


def test_a_call_that_fails_is_an_error_once_the_others_are_warm(warm, monkeypatch):
    failing(monkeypatch, "add")
    with pytest.raises(WarmupError) as caught:
        portakernel.warmup(SEVERAL)
    assert re.fullmatch(
        r"1 call could not be warmed up, and would fail when made:\n"
        r"  add on cpu:\w+ with x float32, y float32, M=16: RuntimeError: PassManager::run failed",
        str(caught.value),
    )
    assert str(caught.value.__cause__) == "PassManager::run failed"
    found = caught.value.warmup
    assert served(found) == [("rms_norm", "inference", "torch.rms_norm_cpu", 1)]
    assert (found.settled, len(found.failed)) == (True, 1)
    assert str(found).endswith(": RuntimeError: PassManager::run failed")
    with warm():
        ops.rms_norm(torch.ones(2, 8), torch.ones(8))


def test_calls_of_a_list_that_cannot_be_made_are_told_once_the_others_are_warm(warm):
    """Each with its reason: a kernel that does not serve it, a shape, an argument, a device."""
    good, *bad = (
        portakernel.Call("softmax", "float32", {"x": (4, 8)}, device="cpu", kernel="reference"),
        portakernel.Call("softmax", "float32", {"x": (4, 16)}, device="cpu", kernel="triton"),
        portakernel.Call("softmax", "float32", {"x": ()}, device="cpu"),
        portakernel.Call("softmax", "float32", {"y": (4, 8)}, device="cpu"),
        portakernel.Call("softmax", "float32", {"x": (4, 8)}, device="abacus:0"),
    )
    with pytest.raises(WarmupError) as caught:
        portakernel.warmup([*bad, good])
    found = caught.value.warmup
    assert served(found) == [("softmax", "inference", "reference.softmax", 1)]
    assert [call for call, _ in found.failed] == list(map(str, bad))
    reasons = [reason for _, reason in found.failed]
    assert reasons[0].startswith("no kernel for op softmax on cpu:")
    assert reasons[1:] == [
        "softmax: x has shape (), but needs (..., N)",
        "softmax: unknown tensor argument 'y'; known: x",
        reasons[3],
    ]
    assert reasons[3].startswith("softmax: device 'abacus:0' cannot be used here; known: ")
    lines = str(caught.value).splitlines()
    assert lines[0] == "4 calls could not be warmed up, and would fail when made:"
    assert [line[:7] for line in lines[1:] if line[:4] != "    "] == ["  Call("] * 4
    assert isinstance(caught.value.__cause__, NoKernelError)
    with warm():
        ops.softmax(torch.zeros(4, 8), kernel="reference")


def test_what_a_build_raises_stops_no_other_call_of_a_list(monkeypatch):
    build_for = prepared_calls.build_for

    def fail(caller, *given):
        if caller.contract.op == "add":
            raise RuntimeError("ld returned 1")
        build_for(caller, *given)

    monkeypatch.setattr(prepared_calls, "build_for", fail)
    with pytest.raises(WarmupError) as caught:
        portakernel.warmup(SEVERAL)
    assert caught.value.warmup.failed == ((str(SEVERAL[0]), "RuntimeError: ld returned 1"),)
    assert served(caught.value.warmup) == [("rms_norm", "inference", "torch.rms_norm_cpu", 1)]


def test_an_op_that_there_is_not_is_an_error_before_anything_runs(monkeypatch):
    failing(monkeypatch, "add")
    with pytest.raises(UnknownNameError) as caught:
        portakernel.warmup([SEVERAL[0], portakernel.Call("scaled_m", "float32", {"x": (4, 8)})])
    assert str(caught.value) == "unknown op 'scaled_m'; did you mean 'scaled_mm'?"
    with pytest.raises(UnknownNameError, match=r"^unknown op 'scaled_m'; did you mean 'scaled_mm'\?$"):
        runtime.caller("scaled_m")


def test_a_functions_own_error_is_its_callers():
    def step() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        portakernel.warmup(step)


def test_what_cannot_be_compiled_ahead_is_not_called_and_the_rest_is(monkeypatch):
    """Calls are not made whose compiler failed: it would fail again, and might take this process with it."""
    jobs = {
        call.op: Job(f"triton.{call.op}", "nvidia:sm_90", call.op, (Phase.INFERENCE,), (), (), 132) for call in SEVERAL
    }
    outcomes = [
        Outcome("triton.add", "nvidia:sm_90", str(jobs["add"]), error="the compiler ended its process (SIGABRT)\nno"),
        Outcome("triton.rms_norm", "nvidia:sm_90", str(jobs["rms_norm"])),
    ]
    monkeypatch.setattr(prepared_calls, "serving_jobs", lambda caller, *_: [(jobs[caller.contract.op], None)])
    monkeypatch.setattr(rehearsal, "compile_ahead", lambda now, asked, shown, workers: outcomes)
    failing(monkeypatch, "add")
    with pytest.raises(WarmupError) as caught:
        portakernel.warmup(SEVERAL)
    found = caught.value.warmup
    assert found.failed == ((str(jobs["add"]), "the compiler ended its process (SIGABRT)\nno"),)
    assert found.ahead == (str(jobs["rms_norm"]),)
    assert found.to_json()["failed"] == dict(found.failed)
    assert f"  compiled ahead {jobs['rms_norm']}\n" in str(found)
    assert served(found) == [("rms_norm", "inference", "torch.rms_norm_cpu", 1)]


def test_in_a_capture_warming_up_is_too_late(stream):
    with stream.capturing(), pytest.raises(CaptureError, match=r"^portakernel\.warmup runs and compiles kernels, but"):
        portakernel.warmup("add", torch.ones(2), torch.ones(2))
