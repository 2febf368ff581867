"""What errors and reasons suggest: pasted, it asks the same, and followed, it builds what was asked."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable
from typing import Any

import pytest
from cxx import needs_cxx

import portakernel
from portakernel import runtime
from portakernel.claims.request import Phase
from portakernel.claims.request_commands import explain_command
from portakernel.contract import Case, TensorArgument
from portakernel.contract.sizes import parse_size
from portakernel.contracts import contract, own_contracts
from portakernel.deciding.decision import Decision
from portakernel.deciding.explaining import explain_in_words
from portakernel.errors import NoKernelError

torch = pytest.importorskip("torch")
HERE = ("cpu:x86_64", "nvidia:sm_90", "amd:gfx942")


def _told(decision: Decision) -> tuple[Any, ...]:
    """What two decisions have in common that are the same, but for who is said to wish it, and what was built here."""
    return decision_of(json.loads(json.dumps(decision.to_json())))


def decision_of(data: dict[str, Any]) -> tuple[Any, ...]:
    standings = {
        one["kernel"]: (
            one["status"],
            [(reason["code"], reason["parameter"]) for reason in one["rejections"] if reason["code"] != "needs_build"],
        )
        for one in data["candidates"]
    }
    return data["target"], data["request"], data["chosen"], standings


@pytest.mark.turns(3)
@pytest.mark.parametrize("target", HERE)
@pytest.mark.parametrize("op", own_contracts())
def test_the_command_of_each_ops_requests_asks_for_them_again(run: Callable, op: str, target: str) -> None:
    described, now = contract(op), runtime.dispatcher()
    for case in described.cases[:: max(1, len(described.cases) // 3)]:
        made = described.at(case.parameters)
        present = [tensor for tensor in made.tensors if not tensor.optional or tensor.name in case.present]
        dtypes: dict[str, str] = {}
        for tensor in present:
            dtypes[tensor.name] = made.accepted_dtypes(tensor.name, dtypes)[0]
        shapes = {tensor.name: _shape(tensor, case) for tensor in present}
        asked = {"dtype": dtypes, "shape": shapes, "parameters": case.parameters, "phase": Phase.TRAINING}
        with portakernel.policy(prefer="torch", deny="triton", require="deterministic"):
            decision = explain_in_words(now, op, target=target, **asked)
        words = shlex.split(explain_command(decision.request, decision.wishes))
        assert decision_of(run(*words[1:], "--json").json) == _told(decision)


def _shape(tensor: TensorArgument, case: Case) -> tuple[int, ...]:
    sizes = [parse_size(text) for text in tensor.fixed]
    fixed = [size.of(case.dims.get(size.name or "", math.prod(case.leading))) for size in sizes]
    return (*(case.leading if tensor.leading is not None else ()), *fixed)


def _refused(call: Callable[[], object]) -> NoKernelError:
    with pytest.raises(NoKernelError) as caught:
        call()
    return caught.value


X, WEIGHT = torch.ones(3, 5, 16), torch.ones(16)


@pytest.mark.parametrize(
    "call",
    [
        lambda: portakernel.ops.rms_norm(X, WEIGHT, kernel="triton"),
        lambda: portakernel.ops.rms_norm(X, WEIGHT, eps=0.5, weight_offset=1.0, kernel="inductor.rms_norm"),
        lambda: portakernel.ops.rms_norm(X[..., ::2], WEIGHT[::2], kernel="torch.rms_norm"),
        lambda: portakernel.ops.rms_norm(X.requires_grad_(), WEIGHT, kernel="flashinfer"),
        lambda: portakernel.bind("rms_norm", X.detach(), WEIGHT, kernel="liger"),
        lambda: portakernel.ops.layer_norm(X.detach(), WEIGHT, WEIGHT, kernel="quack.layer_norm"),
        lambda: portakernel.ops.quantize_fp8(X.detach(), granularity="tensor", dtype="float8_e5m2", kernel="hip"),
        lambda: portakernel.ops.quantize_fp4(X.detach(), format="mxfp4", kernel="triton"),
        lambda: portakernel.ops.gelu_and_mul(X.detach(), approximate="tanh", kernel="triton"),
        lambda: portakernel.ops.add(X.detach(), X.detach(), kernel="hip"),
    ],
    ids=range(10),
)
def test_the_command_of_a_strict_kernels_error_comes_to_the_same_decision(run: Callable, call: Callable) -> None:
    error = _refused(call)
    lines = str(error).splitlines()
    strict = {candidate.kernel.name for candidate in error.decision.strict}
    assert {line.split()[0] for line in lines[1:-2]} == strict
    end = r"(; nothing else is known against \S+( and \d+ others?)?|, and could not serve either)"
    assert re.fullmatch(rf"  \d+ more are left out by that{end}", lines[-2])
    (command,) = re.fullmatch(r"  Run `(portakernel .*)` for the full decision\.", lines[-1]).groups()
    ran = run(*shlex.split(command)[1:], "--json")
    assert ran.status == 1
    for found, wanted in zip(decision_of(ran.json), _told(error.decision), strict=True):
        assert found == wanted


def test_the_command_of_any_error_says_the_policy_it_was_made_under(run: Callable) -> None:
    with portakernel.policy(deny=["torch", "triton", "inductor"], reference="forbid", require="deterministic"):
        error = portakernel.explain("softmax", dtype="float32", shape={"x": (3, 16)}).error()
    (command,) = re.findall(r"`(portakernel explain .*)`", str(error))
    assert " --reference forbid --require deterministic" in command
    assert decision_of(run(*shlex.split(command)[1:], "--json").json) == _told(error.decision)


def test_a_view_that_lies_otherwise_is_asked_about_as_it_lies(run: Callable) -> None:
    decision = portakernel.explain("rms_norm", X.detach()[..., ::2], WEIGHT[::2])
    command = explain_command(decision.request, decision.wishes)
    assert " --fact x.contiguous=false " in command
    assert decision_of(run(*shlex.split(command)[1:], "--json").json) == _told(decision)


@pytest.mark.turns(3)
@pytest.mark.parametrize(
    ("op", "arguments", "values"),
    [
        ("rms_norm", lambda: (torch.ones(3, 24), torch.ones(24)), {"eps": 0.25}),
        ("rms_norm", lambda: (torch.ones(3, 28).requires_grad_(), torch.ones(28)), {}),
        ("layer_norm", lambda: (torch.ones(2, 3, 20), torch.ones(20), torch.ones(20)), {"eps": 0.5}),
        ("silu_and_mul", lambda: (torch.ones(3, 40, dtype=torch.bfloat16),), {}),
        ("quantize_fp8", lambda: (torch.ones(3, 52),), {"granularity": "tensor", "dtype": "float8_e5m2"}),
    ],
    ids=["values", "training", "optional", "dtype", "own dtype"],
)
@needs_cxx
@pytest.mark.filterwarnings("ignore::portakernel.errors.FallbackWarning")
def test_the_advice_to_build_builds_what_was_asked(op: str, arguments: Callable, values: dict[str, Any]) -> None:
    tensors = arguments()

    def reasons() -> list[tuple[str, str]]:
        decision = portakernel.explain(op, *tensors, **values)
        (name,) = [c.kernel.name for c in decision.candidates if c.kernel.name == f"inductor.{op}"]
        return [(str(r.code), r.text) for r in decision.candidate(name).rejections]

    ((code, text),) = reasons()
    assert code == "needs_build"
    (advice,) = re.findall(r"portakernel\.warmup\(.*\)(?= builds it$)", text)
    exec(advice, {"portakernel": portakernel})
    assert "needs_build" not in dict(reasons())


def test_a_question_that_leaves_sizes_open_is_advised_with_the_ops_tensors() -> None:
    decision = portakernel.explain("layer_norm", target="h100", dtype="bfloat16", eps=0.5)
    (reason,) = decision.candidate("inductor.layer_norm").rejections
    assert reason.text == (
        'is not built for these sizes, dtypes and values; portakernel.warmup("layer_norm", x, weight, eps=0.5) builds'
        " it there"
    )


def test_a_plugin_that_lists_nothing_to_build_is_warmed_up() -> None:
    asked = {"target": "nvidia:sm_90", "dtype": "bfloat16", "shape": {"x": (64, 32), "weight": (16, 32)}}
    decision = portakernel.explain("linear_act", activation="gelu", **asked)
    words = "dtype='bfloat16', shape={'x': (64, 32), 'weight': (16, 32)}, activation='gelu'"
    expected = f'it is built: portakernel.warmup("linear_act", {words})'
    assert expected in decision.candidate("cutlass_dsl.linear_act").assumed
    assert "it is built: `portakernel build cutlass --target nvidia:sm_90`" in decision.candidates[0].assumed
