"""Training, backward and forward-mode derivatives: who can serve which part of an op."""

from __future__ import annotations

from dataclasses import replace

import pytest

from portakernel.claims.request import Phase
from portakernel.deciding.explaining import decide_as_called
from portakernel.deciding.policies import intern_policy, make_layer


@pytest.fixture
def dispatcher(world):
    """Kernels of ``rms_norm`` that save nothing, the contract's tensors, the same with a backward, their own."""
    back = {"op": "rms_norm", "backward": "fake_p:backward"}
    world.plugin(
        "p",
        {"op": "rms_norm", "name": "bare", "priority": 9},
        {"op": "rms_norm", "name": "saves", "saves": "contract", "priority": 8},
        {**back, "name": "pair", "priority": 7},
        {**back, "name": "own", "saves": "own", "priority": 6},
        {"op": "rms_norm", "name": "dual", "forward_ad": True, "priority": 5},
    )
    return world.dispatcher()


def eligible(decision) -> list[str]:
    return [candidate.kernel.name for candidate in decision.candidates if candidate.status != "rejected"]


def told(decision, name: str) -> list[tuple[str, str, str]]:
    return [(str(r.code), r.text, r.parameter) for r in decision.candidate(name).rejections]


def ask(world, dispatcher, phase: Phase, saved_by: str | None = None, policy=None):
    request = world.request("rms_norm", phase=phase)
    return dispatcher.decide(replace(request, saved_by=saved_by), policy)


REFERENCE = "reference.rms_norm"


def test_inference_needs_nothing_of_a_kernel(world, dispatcher):
    decision = ask(world, dispatcher, Phase.INFERENCE)
    assert eligible(decision) == ["p.bare", "p.saves", "p.pair", "p.own", "p.dual", REFERENCE]


def test_training_needs_the_saved_tensors(world, dispatcher):
    decision = ask(world, dispatcher, Phase.TRAINING)
    assert eligible(decision) == ["p.saves", "p.pair", "p.own", REFERENCE]
    assert told(decision, "p.bare") == [("requires_grad", "does not save rstd for backward", "requires_grad")]


def test_training_an_op_that_saves_nothing_needs_nothing(world):
    world.plugin("p")
    assert world.dispatcher().decide(world.request(phase=Phase.TRAINING)).chosen.name == "p.add"


def test_backward_needs_a_backward_kernel_and_one_that_reads_its_own_is_no_use_to_others(world, dispatcher):
    decision = ask(world, dispatcher, Phase.BACKWARD)
    assert eligible(decision) == ["p.pair", REFERENCE]
    for name in ("p.bare", "p.saves", "p.dual"):
        assert told(decision, name) == [("no_backward", "has no backward kernel", "requires_grad")]
    assert told(decision, "p.own") == [("backward_mismatch", "reads only what its own forward saves", "requires_grad")]


def test_what_a_kernel_saved_of_its_own_goes_to_its_own_backward(world, dispatcher):
    decision = ask(world, dispatcher, Phase.BACKWARD, saved_by="p.own")
    assert eligible(decision) == ["p.own"]
    assert told(decision, "p.pair") == [("backward_mismatch", "cannot read what p.own saved", "requires_grad")]
    assert told(decision, REFERENCE) == [("backward_mismatch", "cannot read what p.own saved", "requires_grad")]


def test_what_a_kernel_saved_of_the_contract_any_backward_reads(world, dispatcher):
    assert eligible(ask(world, dispatcher, Phase.BACKWARD, saved_by="p.saves")) == ["p.pair", REFERENCE]


RECORDED = "it runs forward in training, where PyTorch records its gradient; no backward kernel is called"


@pytest.fixture
def recording(world):
    """A kernel whose gradient PyTorch records, and one of less priority with a backward."""
    world.plugin(
        "p",
        {"op": "rms_norm", "name": "recorded", "saves": "autograd", "priority": 9},
        {"op": "rms_norm", "name": "pair", "backward": "fake_p:backward", "priority": 7},
    )
    return world.dispatcher()


@pytest.mark.parametrize("wish", [{}, {"use": ("p.recorded",)}, {"use": ("p.pair",)}, {"deny": ("p",)}], ids=str)
def test_after_a_forward_whose_gradient_pytorch_records_no_backward_kernel_is_called(world, recording, wish):
    policy = intern_policy((make_layer("context", **wish),))
    decision = ask(world, recording, Phase.BACKWARD, saved_by="p.recorded", policy=policy)
    assert (decision.chosen.name, decision.why, eligible(decision)) == ("p.recorded", RECORDED, ["p.recorded"])
    text = "is not called: PyTorch records the gradient of p.recorded"
    assert ("backward_mismatch", text, "requires_grad") in told(decision, "p.pair")


def test_a_kernel_whose_gradient_pytorch_records_has_no_backward_for_other_forwards(world, recording):
    decision = ask(world, recording, Phase.BACKWARD, saved_by="p.pair")
    assert eligible(decision) == ["p.pair", REFERENCE]
    assert told(decision, "p.recorded") == [("no_backward", "has no backward kernel", "requires_grad")]


@pytest.mark.parametrize("wish", [{}, {"use": ("p.recorded",)}], ids=str)
def test_a_backward_is_explained_after_the_forward_that_training_would_run(world, recording, wish):
    request = world.request("rms_norm", phase=Phase.BACKWARD)
    decision = decide_as_called(recording, request, intern_policy((make_layer("context", **wish),)))
    assert (decision.chosen.name, decision.why) == ("p.recorded", RECORDED)
    assert decision.request.saved_by == "p.recorded"
    denied = intern_policy((make_layer("context", deny=("p.recorded",)),))
    decision = decide_as_called(recording, request, denied)
    assert (decision.chosen.name, decision.request.saved_by) == ("p.pair", None)


def test_a_backward_is_explained_after_a_forward_that_saves_in_its_own_way(world):
    world.plugin("p", {"op": "rms_norm", "backward": "fake_p:backward", "saves": "own"})
    dispatcher = world.dispatcher()
    decision = decide_as_called(dispatcher, world.request("rms_norm", phase=Phase.BACKWARD), dispatcher.policy())
    assert eligible(decision) == ["p.rms_norm"]


def test_without_a_backward_kernel_the_references_serves(world):
    world.plugin("p", {"op": "rms_norm", "saves": "contract"})
    decision = world.dispatcher().decide(world.request("rms_norm", phase=Phase.BACKWARD))
    assert decision.chosen.name == REFERENCE


def test_forward_mode_needs_a_kernel_that_declares_it(world, dispatcher):
    decision = ask(world, dispatcher, Phase.FORWARD_AD)
    assert eligible(decision) == ["p.dual", REFERENCE]
    assert told(decision, "p.bare") == [("requires_grad", "has no forward-mode derivative", "requires_grad")]


def use(*names: str):
    return intern_policy((make_layer("context", use=names),))


def test_using_a_forward_kernel_without_a_backward_says_nothing_of_the_backward(world, dispatcher):
    assert ask(world, dispatcher, Phase.TRAINING, policy=use("p.saves")).chosen.name == "p.saves"
    assert ask(world, dispatcher, Phase.BACKWARD, policy=use("p.saves")).chosen.name == "p.pair"


def test_using_a_kernel_with_a_backward_binds_both(world, dispatcher):
    assert ask(world, dispatcher, Phase.TRAINING, policy=use("p.pair")).chosen.name == "p.pair"
    decision = ask(world, dispatcher, Phase.BACKWARD, policy=use("p.pair"))
    assert decision.chosen.name == "p.pair"
    strictly = ("denied_by_policy", "context uses p.pair strictly", None)
    assert told(decision, REFERENCE) == [strictly]


def test_using_a_kernel_that_does_not_save_is_an_error_in_training(world, dispatcher):
    decision = ask(world, dispatcher, Phase.TRAINING, policy=use("p.bare"))
    assert decision.chosen is None
    assert told(decision, "p.bare") == [("requires_grad", "does not save rstd for backward", "requires_grad")]


def test_the_winner_of_backward_is_imported_by_its_backward(world):
    world.plugin("p", {"op": "rms_norm", "backward": "fake_p:nope", "priority": 9})
    world.plugin("q", {"op": "rms_norm", "backward": "fake_q:backward"})
    dispatcher = world.dispatcher()
    assert dispatcher.decide(world.request("rms_norm", present=True)).chosen.name == "p.rms_norm"
    decision = dispatcher.decide(world.request("rms_norm", present=True, phase=Phase.BACKWARD))
    assert decision.chosen.name == "q.rms_norm"
    ((code, text, _),) = told(decision, "p.rms_norm")
    assert code == "import_failed"
    assert text.startswith("importing fake_p:nope raised ")


def test_the_request_names_its_phase(world):
    request = world.request("rms_norm", phase=Phase.BACKWARD, shapes={"x": (2, 3)}, values={"weight_offset": 1.0})
    text = "rms_norm (backward) on acme:acme1 with x float32, weight float32, M=2, N=3, weight_offset=1.0"
    assert str(request) == text
    assert request.to_json()["phase"] == "backward"
