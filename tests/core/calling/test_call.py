"""A call through the key table: hits, misses, declared refusals, out=, counting."""

from __future__ import annotations

import sys
import threading
import warnings
from pathlib import Path

import pytest
import torch

import portakernel
from portakernel.claims.capability import ReasonCode
from portakernel.claims.request import Phase
from portakernel.deciding.policies import make_layer
from portakernel.errors import ArgumentTypeError, ArgumentValueError, FallbackWarning, NoKernelError


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def test_a_second_call_alike_is_a_hit(ops, calls):
    decided: list[str] = []
    decide = ops.dispatcher.decide
    ops.dispatcher.decide = lambda *args: decided.append("decided") or decide(*args)
    for rows in (3, 5, 7):
        x = normal(rows, 4)
        torch.testing.assert_close(ops.add(x, x), 2 * x)
    assert (decided, calls) == (["decided"], ["add"] * 3)


def test_the_key_holds_limits_as_outcomes_and_does_not_grow_with_sizes(ops):
    for size in range(1, 300):
        ops.add(normal(size), normal(size))
    assert len(ops.caller("add").table.entries) == 1


def test_the_key_table_is_bounded(ops, monkeypatch):
    monkeypatch.setattr("portakernel.calling.key_table.MAX_KEYS", 3)
    x = normal(4)
    for i in range(8):
        layer = make_layer(f"layer {i}", deny="raw_kernels.picky")
        token = ops.dispatcher.context_layers.set((layer,))
        ops.add(x, x)
        ops.dispatcher.context_layers.reset(token)
        assert len(ops.caller("add").table.entries) <= 3
    assert ops.served("add") == {"raw_kernels.add": 8}


def test_a_call_outside_a_limit_falls_back_with_one_warning(ops, calls):
    x = normal(5000)
    expected = r"^add: raw_kernels\.add cannot serve \(limit: needs M <= 4096; this is 5000\); torch\.add does$"
    with pytest.warns(FallbackWarning, match=expected):
        torch.testing.assert_close(ops.add(x, x), 2 * x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(ops.add(normal(6000), normal(6000)).shape, torch.Size([6000]))
    assert ops.served("add") == {"torch.add": 2}
    (placement,) = ops.caller("add").table.entries.values()
    assert placement.fallback == ("raw_kernels.add",)


@pytest.fixture
def picky_first(ops):
    """A kernel that declines every call, before one that serves."""
    token = ops.dispatcher.context_layers.set((make_layer("context", prefer=("raw_kernels.picky", "torch.add")),))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        yield
    ops.dispatcher.context_layers.reset(token)


def test_a_kernel_that_declines_a_size_is_not_asked_for_it_again(ops, calls, picky_first):
    for size in (4, 4, 4, 8, 8, 4):
        x = normal(size)
        torch.testing.assert_close(ops.add(x, x), 2 * x)
    assert calls == ["picky", "picky"]  # once for each size
    assert ops.served("add") == {"torch.add": 6}


def test_explain_shows_what_a_kernel_declined_for_that_size_alone(ops, picky_first):
    ops.add(normal(4), normal(4))
    caller = ops.caller("add")
    (rejection,) = caller.explain((normal(4), normal(4)), (), Phase.INFERENCE).candidate("raw_kernels.picky").rejections
    assert (rejection.code, rejection.parameter) == (ReasonCode.SHARED_MEMORY, "M")
    decision = caller.explain((normal(8), normal(8)), (), Phase.INFERENCE)
    assert decision.chosen.name == "raw_kernels.picky"


def test_a_kernel_that_declines_without_a_parameter_is_passed_over_for_its_key(ops, calls, picky_first):
    for size in (5000, 6000):
        x = normal(size)
        torch.testing.assert_close(ops.add(x, x), 2 * x)
    assert calls == ["picky"]
    assert ops.served("add") == {"torch.add": 2}


def test_a_named_kernel_that_cannot_run_is_an_error_with_its_reason(ops):
    x = normal(4)
    message = "raw_kernels.picky +shared_memory +needs 1 GiB of shared memory; this device has none"
    for _ in range(2):
        with pytest.raises(NoKernelError, match=message):
            ops.add(x, x, kernel="raw_kernels.picky")


def test_any_other_exception_is_a_bug_and_propagates(ops, monkeypatch):
    from raw_kernels import kernels

    def broken(*_arguments: object, **_options: object) -> None:
        raise ZeroDivisionError("bug")

    monkeypatch.setattr(kernels, "rms_norm", broken)
    with pytest.raises(ZeroDivisionError, match=r"^bug$"):
        ops.rms_norm(normal(2, 4), normal(4))


def test_the_kernel_argument_is_strict_for_one_call(ops, calls):
    x = normal(4)
    ops.add(x, x, kernel="torch.add")
    ops.add(x, x, kernel="torch")
    ops.add(x, x)
    assert ops.served("add") == {"torch.add": 2, "raw_kernels.add": 1}


def test_a_policy_change_is_followed_at_once(ops, calls):
    x = normal(4)
    ops.add(x, x)
    ops.dispatcher.set_process_layer(make_layer("set_policy", deny="raw_kernels"))
    ops.add(x, x)
    ops.dispatcher.set_process_layer(None)
    ops.add(x, x)
    assert ops.served("add") == {"raw_kernels.add": 2, "torch.add": 1}


def test_out_is_written_and_returned(ops):
    x, y, out = normal(3, 4), normal(3, 4), torch.full((3, 4), torch.nan)
    version = out._version
    assert ops.add(x, y, out=out) is out
    torch.testing.assert_close(out, x + y)
    assert out._version > version


def test_out_may_be_an_input_where_contract_and_kernel_allow_it(ops):
    x, y = normal(3, 4), normal(3, 4)
    expected = x + y
    ops.add(x, y, out=x)
    torch.testing.assert_close(x, expected)
    decision = next(p.decision for p in ops.caller("add").table.entries.values() if p.decision.request.requires)
    assert decision.request.requires == {"inplace"}
    (rejection,) = decision.candidate("raw_kernels.picky").rejections
    assert rejection.code is ReasonCode.LOWER_PRIORITY


@pytest.mark.parametrize(
    ("out", "error", "message"),
    [
        (lambda x: [1.0], ArgumentTypeError, "add: out must be a tensor; this is list"),
        (lambda x: x.double(), ArgumentTypeError, "add: out has dtype torch.float64; the result has torch.float32"),
        (lambda x: x[:2], ArgumentValueError, r"add: out has shape \(2, 4\); the result has \(4, 4\)"),
        (lambda x: x.to("meta"), ArgumentValueError, "add: out is on meta; the inputs are on cpu"),
        (
            lambda x: x.t(),
            ArgumentValueError,
            "add: out shares memory with x; it may be x or y itself, or separate memory",
        ),
        (
            lambda x: torch.empty(4, 1).expand(4, 4),
            ArgumentValueError,
            r"add: several elements of out share memory, as after expand\(\)",
        ),
    ],
)
def test_an_out_that_cannot_take_the_result_is_refused(ops, out, error, message):
    x = normal(4, 4)
    before = x.clone()
    with pytest.raises(error, match=f"^{message}$"):
        ops.add(x, normal(4, 4), out=out(x))
    torch.testing.assert_close(x, before)


def test_out_that_overlaps_an_input_in_part_is_refused(ops):
    memory = normal(20)
    with pytest.raises(ArgumentValueError, match=r"^add: out shares memory with y; it may be x or y itself, "):
        ops.add(normal(12), memory[:12], out=memory[4:16])


def test_out_and_gradients_do_not_go_together(ops):
    x = normal(4).requires_grad_()
    with pytest.raises(ArgumentValueError, match=r"^add: out= does not record gradients; leave out= away or use "):
        ops.add(x, x, out=torch.empty(4))
    with torch.no_grad():
        torch.testing.assert_close(ops.add(x, x, out=torch.empty(4)), 2 * x)


def test_zero_rows_are_served(ops):
    assert ops.rms_norm(normal(0, 4), normal(4)).shape == (0, 4)
    assert ops.add(normal(0), normal(0)).shape == (0,)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((normal(3, 4), normal(5)), ArgumentValueError, r"weight has shape \(5,\), so N = 5, but x has N = 4"),
        ((normal(3, 4), normal(1, 4)), ArgumentValueError, r"weight has shape \(1, 4\), but needs \(N,\)"),
        ((torch.tensor(1.0), normal(1)), ArgumentValueError, r"x has shape \(\), but needs \(\.\.\., N\)"),
        ((normal(3, 4), normal(4).half()), ArgumentTypeError, "weight is float16; it must be float32"),
        (
            (normal(3, 4).int(), normal(4)),
            ArgumentTypeError,
            "x is int32; it must be float32 or float16 or bfloat16, or float64, which the reference serves",
        ),
        (
            (normal(3, 4), normal(4).to("meta")),
            ArgumentValueError,
            "weight is on meta, but x is on cpu; move them to one device",
        ),
        (
            (normal(3, 4), 1.0),
            ArgumentTypeError,
            (
                r"weight must be a tensor; this is float: x\.new_full\(x\.shape\[-1:\], weight\) makes one, best once"
                " and not in each call"
            ),
        ),
        (
            (normal(3, 4).to_sparse(), normal(4)),
            ArgumentTypeError,
            r"x is torch\.sparse_coo; dense \(torch\.strided\) tensors are accepted",
        ),
    ],
)
@pytest.mark.parametrize("warm", [False, True])
def test_arguments_that_do_not_fit_are_refused(ops, arguments, error, message, warm):
    if warm:
        ops.rms_norm(normal(3, 4), normal(4))
    with pytest.raises(error, match=f"^rms_norm: {message}$"):
        ops.rms_norm(*arguments)


def test_broadcasting_is_refused(ops):
    with pytest.raises(ArgumentValueError, match=r"they must be equal \(broadcasting is refused\)$"):
        ops.add(normal(3, 4), normal(1, 4))


def test_a_hit_makes_three_python_calls_and_asks_whether_it_is_traced(ops):
    """The public function, the adapter, the kernel: nothing else of ours is on the path."""
    x, weight = normal(2, 4), normal(4)
    ops.rms_norm(x, weight)
    entered: list[str] = []
    files = ("<portakernel", str(Path(portakernel.__file__).parent), "raw_kernels/", "torch/compiler/")

    def profile(frame, event, _argument):
        if event == "call" and any(file in frame.f_code.co_filename for file in files):
            entered.append(frame.f_code.co_name)

    sys.setprofile(profile)
    try:
        ops.rms_norm(x, weight)
    finally:
        sys.setprofile(None)
    assert [name for name in entered if name != "memory"] == ["rms_norm", "is_dynamo_compiling", "launch", "rms_norm"]


def test_many_threads_place_a_key_and_count_every_call(ops):
    x, start = normal(4), threading.Barrier(8)
    wrong: list[torch.Tensor] = []

    def work():
        start.wait()
        for _ in range(200):
            y = ops.add(x, x)
            if not torch.equal(y, x + x):
                wrong.append(y)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert ops.served("add") == {"raw_kernels.add": 1600}
