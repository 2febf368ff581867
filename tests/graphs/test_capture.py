"""While a stream is captured: what is known is used, what would have to be found out is refused."""

from __future__ import annotations

import pickle
import warnings

import pytest
import torch

from portakernel.claims.capability import CannotRun, ReasonCode, Rejection
from portakernel.deciding.policies import make_layer
from portakernel.deciding.readiness import Readiness
from portakernel.errors import CaptureError, FallbackWarning, NoKernelError
from portakernel.tensors.capture import is_capturing
from portakernel.tensors.compilation import Compilations

WAY_OUT = (
    ", but a stream is being captured: until that ends nothing is probed, loaded or compiled. Before the capture run"
    " portakernel.warmup(function, *args) with the function that is captured, or portakernel.warmup(op, *tensors) for a"
    " single call"
)


@pytest.fixture
def ops(make_ops):
    return make_ops("raw_kernels", "torch")


def prefer(ops, *names: str):
    ops.dispatcher.context_layers.set((make_layer("context", prefer=names),))


def test_without_a_gpu_nothing_is_captured():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert not is_capturing()


def test_the_error_says_what_and_the_way_out_and_survives_pickling():
    error = pickle.loads(pickle.dumps(CaptureError("x would have to be compiled")))
    assert (error.what, str(error)) == ("x would have to be compiled", "x would have to be compiled" + WAY_OUT)


def test_a_cold_call_is_refused_and_leaves_nothing_behind(ops, stream):
    x = torch.randn(4)
    with stream.capturing(), warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(CaptureError) as caught:
            ops.add(x, x)
    assert caught.value.what == "torch.add would have to be imported (portakernel_plugins.torch.add:add)"
    assert ops.caller("add").table.entries == {}
    assert torch.equal(ops.add(x, x), 2 * x)


def test_training_is_refused_alike(ops, stream):
    x, weight = torch.randn(2, 8, requires_grad=True), torch.ones(8)
    with stream.capturing(), pytest.raises(CaptureError, match="would have to be imported"):
        ops.rms_norm(x, weight)
    torch.testing.assert_close(ops.rms_norm(x, weight), torch.nn.functional.rms_norm(x, (8,), weight, 1e-6))


def test_another_kind_of_call_is_decided_from_what_is_known(ops, stream):
    prefer(ops, "torch")
    ops.add(torch.randn(4), torch.randn(4))
    known = len(ops.caller("add").table.entries)
    x = torch.randn(4, dtype=torch.bfloat16)
    with stream.capturing():
        assert torch.equal(ops.add(x, x), 2 * x)
        assert torch.equal(ops.add(x, x), 2 * x)
    assert len(ops.caller("add").table.entries) == known + 1
    assert ops.served("add") == {"torch.add": 3}


def test_a_choice_of_a_capture_is_for_captures_alone(ops, stream):
    prefer(ops, "torch")
    ops.add(torch.randn(4), torch.randn(4))  # imports torch.add
    ops.dispatcher.context_layers.set(())
    x = torch.randn(4)
    with stream.capturing(), pytest.warns(FallbackWarning, match=r"raw_kernels\.add cannot serve \(not_capturable"):
        ops.add(x, x)
    ops.add(x, x)
    assert ops.served("add") == {"torch.add": 2, "raw_kernels.add": 1}


def test_a_kernel_chosen_before_that_cannot_be_captured_makes_place_for_the_capture(ops, stream):
    prefer(ops, "torch")
    ops.add(torch.randn(4), torch.randn(4))  # imports torch.add
    ops.dispatcher.context_layers.set(())
    x = torch.randn(4)
    ops.add(x, x)
    text = (
        r"^add: raw_kernels\.add cannot serve \(not_capturable: cannot be launched while a stream is captured\);"
        r" torch\.add does$"
    )
    with stream.capturing():
        with pytest.warns(FallbackWarning, match=text):
            assert torch.equal(ops.add(x, x), 2 * x)
        assert torch.equal(ops.add(x, x), 2 * x)  # and is told of once
    ops.add(x, x)
    assert ops.served("add") == {"torch.add": 3, "raw_kernels.add": 2}


def test_a_strict_wish_for_a_kernel_that_cannot_be_captured_is_refused(ops, stream):
    x = torch.randn(4)
    ops.add(x, x, kernel="raw_kernels.add")
    with stream.capturing(), pytest.raises(NoKernelError) as caught:
        ops.add(x, x, kernel="raw_kernels.add")
    (rejection,) = caught.value.decision.candidate("raw_kernels.add").rejections
    assert (rejection.code, rejection.parameter) == (ReasonCode.NOT_CAPTURABLE, "graph_capture")


def test_a_hit_of_a_kernel_that_can_be_captured_asks_nothing_of_the_stream(ops, stream):
    prefer(ops, "torch")
    x = torch.randn(4)
    ops.add(x, x)
    stream.asked = 0
    with stream.capturing():
        assert torch.equal(ops.add(x, x), 2 * x)
    assert stream.asked == 0


def test_a_kernel_that_declines_a_capture_in_spite_of_its_claim_is_passed_over_once(ops, stream, monkeypatch):
    declined = []

    def decline(*_arguments, **_values):
        declined.append("torch.add")
        raise CannotRun(Rejection(ReasonCode.NOT_CAPTURABLE, "not today"))

    prefer(ops, "torch")
    monkeypatch.setitem(ops.dispatcher.readiness._loaded, "portakernel_plugins.torch.add:add", decline)
    ops.dispatcher.entry("portakernel.references.add:forward")
    x = torch.randn(4)
    with stream.capturing(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        for _ in range(3):
            assert torch.equal(ops.add(x, x), 2 * x)
    assert declined == ["torch.add"]
    assert ops.served("add") == {"reference.add": 3}


def test_answers_that_are_known_are_given_in_a_capture(ops, stream):
    readiness: Readiness = ops.dispatcher.readiness
    kernel = ops.dispatcher.registry.kernels["torch.add"]
    with stream.capturing(), pytest.raises(CaptureError):
        readiness.load(kernel, kernel.entry)
    assert readiness.load(kernel, kernel.entry) is None
    with stream.capturing():
        assert readiness.load(kernel, kernel.entry) is None
        assert callable(readiness.entry(kernel.entry))
        with pytest.raises(CaptureError, match=r"^portakernel\.references\.add:forward would have to be imported"):
            readiness.entry("portakernel.references.add:forward")


def test_what_compiles_is_counted_and_refused_in_a_capture(stream):
    compiled = Compilations()
    compiled.announce("first")
    mark = len(compiled)
    compiled.announce("second")
    with stream.capturing(), pytest.raises(CaptureError) as caught:
        compiled.announce("third")
    assert caught.value.what == "third would have to be compiled for these arguments"
    assert (compiled.since(0), compiled.since(mark)) == (("first", "second"), ("second",))
