"""``portakernel explain``."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Callable

import pytest

import portakernel
from portakernel import runtime
from portakernel.claims.advice import REASONS
from portakernel.claims.capability import ReasonCode, Rejection
from portakernel.cli.advice import advice
from portakernel.cli.explain.command import read_names
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.registry.plugin_manager import PluginManager, installed_packages
from portakernel.registry.registry import Registry
from portakernel.runtime import dispatcher

MI300X = "explain rms_norm --target amd:gfx942 --dtype bfloat16 --shape x=4096x8192"


@pytest.fixture
def _two_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plugins ``torch`` and ``triton`` alone, so that texts can be compared whole."""
    names = {"torch", "triton", "nvidia", "amd", "apple", "cpu"}
    packages = [package for package in installed_packages() if package.name in names]
    monkeypatch.setattr(runtime, "_dispatcher", functools.cache(lambda: Dispatcher(Registry(PluginManager(packages)))))


def test_json_is_the_decision_key_by_key(run: Callable) -> None:
    ran = run(f"{MI300X} --json")
    data = ran.json
    assert ran.status == 0
    assert list(data) == ["op", "target", "request", "chosen", "form", "why", "shortfalls", "notes", "candidates"]
    assert list(data["request"]) == [
        "phase", "compiled", "dtypes", "dims", "facts", "features", "formats", "requires", "attached", "device",
    ]  # fmt: skip
    assert data["op"] == "rms_norm"
    assert data["target"] == "amd:gfx942"
    assert data["request"]["dims"] == {"M": 4096, "N": 8192}
    assert data["request"]["dtypes"] == {"x": "bfloat16", "weight": "bfloat16"}
    assert data["chosen"] == data["candidates"][0]["kernel"]
    for candidate in data["candidates"]:
        assert list(candidate) == ["kernel", "status", "priority", "form", "rejections", "target", "assumed"]
        assert candidate["status"] in {"chosen", "eligible", "rejected"}
        assert bool(candidate["rejections"]) == (candidate["status"] != "chosen")
        for rejection in candidate["rejections"]:
            assert list(rejection) == ["code", "text", "parameter"]
    asked = portakernel.explain("rms_norm", target="amd:gfx942", dtype="bfloat16", shape={"x": (4096, 8192)})
    assert data == asked.to_json()


def test_candidates_are_exactly_those_of_list(run: Callable) -> None:
    for op in ("add", "rms_norm"):
        explained = {
            candidate["kernel"] for candidate in run(f"explain {op} --target cpu:x86_64 --json").json["candidates"]
        }
        assert explained == {kernel["kernel"] for kernel in run(f"list --op {op} --json").json["kernels"]}


@pytest.mark.usefixtures("_two_plugins")
def test_people_read_what_was_asked_who_serves_it_and_why_then_its_rivals(run: Callable) -> None:
    lines = run(MI300X).out.splitlines()
    asked = "for inference, with x and weight bfloat16, M=4096, N=8192."
    assert lines[0] == f"rms_norm on amd:gfx942, CDNA 3 (MI300A, MI300X, MI325X), {asked}"
    assert lines[2] == "triton.rms_norm serves it: highest priority 60, before 40 of torch.rms_norm."
    assert lines[3].startswith(
        "Assumed, because amd:gfx942 was not probed: triton >=3.6 is installed; the device passes"
    )
    heading = lines.index("The strongest candidates")
    assert lines[heading + 1] == "  triton.rms_norm          serves, with priority 60; from plugin triton."
    assert lines[heading + 2] == (
        "  torch.rms_norm           could serve too: priority 40 is below 60 of triton.rms_norm."
        " Assumed: torch >=2.11 is installed."
    )
    others = {line.split()[-1]: line.strip() for line in lines[lines.index("The others") + 1 :]}
    assert others["torch.rms_norm_cpu"].startswith("vendor: serves cpu, not amd  ")


@pytest.mark.usefixtures("_two_plugins")
def test_a_better_kernel_that_is_refused_stands_next_to_the_winner_with_what_to_do(run: Callable) -> None:
    lines = run("explain rms_norm --target nvidia:sm_90 --dtype bfloat16 --shape x=4x1073741825").out.splitlines()
    heading = lines.index("The strongest candidates")
    assert lines[heading + 1].startswith("  torch.rms_norm           serves, with priority 40; ")
    assert lines[heading + 2] == (
        "  triton.rms_norm          would go first, with priority 60, but cannot serve: needs N >= 1 and <= 1073741824;"
        " this is 1073741825 (limit)."
    )
    assert lines[lines.index("What to do") + 1 :] == ["  For triton.rms_norm: use another kernel for such sizes."]


@pytest.mark.usefixtures("_two_plugins")
def test_a_refused_kernel_that_only_ties_with_the_winner_is_told_as_one_that_goes_first_by_name(run: Callable) -> None:
    lines = [" ".join(line.split()) for line in run("explain scaled_mm --target b200 --format nvfp4").out.splitlines()]
    heading = lines.index("The strongest candidates")
    assert lines[heading + 1] == "torch.scaled_mm_mx serves, with priority 50; from plugin torch."
    assert lines[heading + 2] == (
        "torch.scaled_mm would go first by its name, with the same priority 50, but cannot serve:"
        " tensor: a takes tensor; this is nvfp4 (scale_format)."
    )


@pytest.mark.usefixtures("_two_plugins")
def test_every_reason_of_a_strong_candidate_is_told(run: Callable) -> None:
    line = "explain rms_norm --target nvidia:sm_90 --dtype x=bfloat16 --dtype weight=float32 --set weight_offset=1"
    lines = run(f"{line} --deny triton").out.splitlines()
    assert lines[3] == "It is the reference: correct, but not fast."
    first = next(i for i, text in enumerate(lines) if text.startswith("  torch.rms_norm  "))
    assert lines[first].endswith("but cannot serve: weight needs x's dtype; this is float32 (dtype).")
    assert lines[first + 1].strip() == "also: does not serve weight_offset=1.0 (feature)."
    todo = "  For torch.rms_norm: give weight in a dtype that it takes; do without weight_offset."
    assert todo in lines[lines.index("What to do") :]


@pytest.mark.usefixtures("_two_plugins")
@pytest.mark.parametrize(
    ("line", "environment", "used_by"),
    [
        ("rms_norm --target h100 USE", {}, "--use"),
        ("rms_norm --target h100 USE --deny triton", {}, "--use"),
        ("rms_norm --target h100 USE --deny triton --deny torch --reference forbid", {}, "--use"),
        ("rms_norm --target h100", {"PORTAKERNEL_USE": "torch.rms_norm_mps", "PORTAKERNEL_PREFER": "torch"}, "PORTAKERNEL_USE"),  # noqa: E501
        ("rms_norm --target h100 --shape x=1x1073741825 USE", {}, "--use"),
        ("rms_norm --target h100 --phase backward USE", {}, "--use"),
    ],
)  # fmt: skip
def test_who_serves_without_a_use_that_cannot_is_decided_not_guessed(
    run: Callable, monkeypatch: pytest.MonkeyPatch, line: str, environment: dict[str, str], used_by: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    ran = run(f"explain {line.replace('USE', '--use torch.rms_norm_mps')}")
    steps = [step.strip() for step in ran.out.partition("\nWhat to do\n")[2].splitlines()]
    monkeypatch.delenv("PORTAKERNEL_USE", raising=False)
    made = Dispatcher(dispatcher().registry)
    monkeypatch.setattr(runtime, "_dispatcher", lambda: made)
    free = run(f"explain {line.replace('USE', '')} --json").json["chosen"]
    if free is None:
        assert steps == ["`portakernel matrix --op rms_norm` shows where it is served, and in which dtypes."]
    else:
        assert ran.status == (0 if "backward" in line else 1)
        assert steps == ([] if "backward" in line else [f"Without {used_by} {free} serves it."])


@pytest.mark.usefixtures("_two_plugins")
def test_what_the_hardware_emulates_is_said(run: Callable) -> None:
    asked = "explain rms_norm --dtype bfloat16 --target"
    assert (
        "\nNote: bfloat16 is emulated on nvidia:sm_75, by conversion to a wider type"
        in run(f"{asked} nvidia:sm_75").out
    )
    assert "Note: " not in run(f"{asked} nvidia:sm_80").out


@pytest.mark.usefixtures("_two_plugins")
def test_when_none_can_serve_people_read_what_to_do(run: Callable) -> None:
    denied = "--deny torch --deny triton --deny reference"
    ran = run(f"explain add --target nvidia:sm_90 {denied}")
    assert (ran.status, ran.err) == (1, "")
    assert "\nNo kernel can serve it.\n" in ran.out
    assert "  triton.add     cannot serve: denied by command line (denied_by_policy).\n" in ran.out
    assert ran.out.endswith(
        "  For reference.add: take back the wish that stands against it (denied by command line).\n"
    )


@pytest.mark.usefixtures("_two_plugins")
def test_a_strict_kernel_that_cannot_serve_stands_alone_above_the_others(run: Callable) -> None:
    lines = run("explain rms_norm --target m4 --use triton").out.splitlines()
    assert lines[0] == "m4 is apple:m4."
    assert lines[1].startswith("rms_norm on apple:m4, Apple9 (M4, M4 Pro, M4 Max), for inference")
    heading = lines.index("The strongest candidates")
    assert lines[heading + 1 : heading + 4] == [
        "  triton.rms_norm  cannot serve: serves nvidia, amd, not apple (vendor).",
        "",
        "The others",
    ]


@pytest.mark.usefixtures("_two_plugins")
def test_a_terminal_shows_the_winner_in_colour(run: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("portakernel.cli.output.is_terminal", lambda _: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "60"}.items():
        monkeypatch.setenv(name, value)
    out = run(MI300X).out
    assert "\x1b[32mtriton.rms_norm\x1b[0m serves it: highest priority 60" in out
    assert max(len(line) for line in re.sub(r"\x1b\[[\d;]*m", "", out).splitlines()) <= 60


def test_every_reason_has_advice_and_every_advice_can_be_given() -> None:
    assert set(REASONS) == set(ReasonCode)
    kernel = dispatcher().registry.kernels["triton.rms_norm"]
    for code in ReasonCode:
        text = advice(kernel, Rejection(code, "because", "x.stride_last"))
        assert "{" not in text
        assert not text.endswith(".")
    missing = Rejection(ReasonCode.NOT_INSTALLED, "needs triton >=3.6; it is not installed", "triton")
    assert advice(kernel, missing) == "pip install 'triton>=3.6'"


@pytest.mark.parametrize("code", [code for code, reason in REASONS.items() if reason.command])
def test_a_reasons_example_is_what_explain_prints(run: Callable, code: ReasonCode) -> None:
    reason = REASONS[code]
    decision = run("explain", *shlex.split(reason.command), "--json").json
    (rejections,) = [c["rejections"] for c in decision["candidates"] if c["kernel"] == reason.kernel]
    assert {"code": str(code), "text": reason.text, "parameter": reason.parameter} in rejections


def test_reasons_are_told_in_sentences() -> None:
    for reason in REASONS.values():
        assert all(text.endswith(".") for text in (reason.meaning, reason.when))
        assert reason.remedy or reason.instead
        assert bool(reason.kernel) == bool(reason.text)


def test_when_none_can_serve_the_decision_is_printed_and_the_status_is_1(run: Callable) -> None:
    ran = run("explain rms_norm --target nvidia:sm_90 --use torch --set weight_offset=1 --json")
    assert ran.status == 1
    assert ran.json["chosen"] is None
    codes = {c["kernel"]: [r["code"] for r in c["rejections"]] for c in ran.json["candidates"]}
    assert codes["torch.rms_norm"] == ["feature"]
    assert codes["triton.rms_norm"] == ["denied_by_policy"]


def test_a_wish_is_named_as_the_command_lines(run: Callable) -> None:
    ran = run("explain add --target nvidia:sm_90 --prefer torch.add --deny triton --json")
    assert (ran.json["chosen"], ran.json["why"]) == ("torch.add", "command line prefers it")
    denied = next(c for c in ran.json["candidates"] if c["kernel"] == "triton.add")
    assert denied["rejections"][0]["text"] == "denied by command line"
    assert run("explain add --target nvidia:sm_90 --json").json["chosen"] == "triton.add"


def test_dtypes_shapes_parameters_and_phase_reach_the_request(run: Callable) -> None:
    line = "explain rms_norm --target nvidia:sm_90 --dtype x=float16 --dtype weight=float32 --shape x=2x3x8"
    request = run(f"{line} --shape weight=8 --set weight_offset=0.5 --set eps=1e-3 --phase training --json").json[
        "request"
    ]
    assert request["dtypes"] == {"x": "float16", "weight": "float32"}
    assert request["dims"] == {"M": 6, "N": 8}
    assert request["features"] == {"weight_offset": 0.5}
    assert request["phase"] == "training"


def test_without_a_target_this_machines_first_device_is_probed(run: Callable) -> None:
    ran = run("explain add --dtype float32 --shape x=8 --shape y=8")
    assert ran.status == 0
    assert ran.out.startswith("add on this machine's ")
    assert run("explain add --json").json["request"]["device"] is not None


@pytest.mark.parametrize(
    ("words", "formats"),
    [
        ("--format row", {"a": "row", "b": "row"}),
        ("--format a=row --format b=tensor", {"a": "row", "b": "tensor"}),
        ("--format tensor", {"a": "tensor", "b": "tensor"}),
    ],
)
def test_scale_formats_reach_the_request(run: Callable, words: str, formats: dict[str, str]) -> None:
    request = run(f"explain scaled_mm --target nvidia:sm_90 {words} --json").json["request"]
    assert request["formats"] == formats


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (
            "attention --set causal=true --set window=128,0",
            "for inference, with causal=True, window=(128, 0), dtypes and",
        ),
        ("attention --set scale=none --set softcap=3e1", "for inference, with softcap=30.0, dtypes and"),
        ("gelu_and_mul --set approximate=tanh", "for inference, with approximate='tanh', dtypes and"),
        (
            "scaled_mm --set out_dtype=float32 --format row",
            "with out_dtype float32, a and b in scale format row, dtypes and",
        ),
        ("rms_norm --dtype bfloat16 --set eps=1", "with x and weight bfloat16, eps=1.0, sizes left open."),
    ],
)
def test_keyword_arguments_are_read_as_their_kind_and_told(run: Callable, asked: str, told: str) -> None:
    assert told in run(f"explain {asked} --target nvidia:sm_90").out.splitlines()[0]


def test_names_are_for_all_arguments_or_for_one_each() -> None:
    assert read_names("--dtype", []) is None
    assert read_names("--dtype", [" float32 "]) == "float32"
    assert read_names("--dtype", ["x=float32", "y=float16"]) == {"x": "float32", "y": "float16"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("rms_nrom", "unknown op 'rms_nrom'; did you mean 'rms_norm'?"),
        (
            "rms_norm --target amd:gfx943",
            "unknown amd arch or product 'gfx943'; did you mean 'gfx942' or 'gfx950' or 'gfx90a'? amd has\n  gfx908 ",
        ),
        ("rms_norm --target amdd:gfx942", "unknown vendor 'amdd'; did you mean 'amd'?"),
        (
            "rms_norm --target gfx943",
            "target 'gfx943' is not of the form vendor:arch, such as nvidia:sm_90 or amd:gfx942, and no product that",
        ),
        ("rms_norm --dtype bf16", "unknown dtype 'bf16'; did you mean 'bfloat16'?"),
        (
            "rms_norm --dtype bfloat16 --dtype x=float32",
            "--dtype bfloat16 is for every argument, so it stands alone; beside others write ARG=bfloat16",
        ),
        ("rms_norm --dtype x=float32 --dtype x=float16", "--dtype gives x twice: float32 and float16"),
        ("rms_norm --shape x=4096,8192", "--shape 'x=4096,8192' is not a shape; write ARG=AxBxC, such as x=4096x8192"),
        ("rms_norm --shape x=-1x4", "--shape 'x=-1x4' is not a shape; write ARG=AxBxC, such as x=4096x8192"),
        ("rms_norm --shape x=4x4 --shape x=4x4", "--shape gives x twice"),
        ("rms_norm --set eps", "--set 'eps' is not NAME=VALUE, such as eps=1.0"),
        ("rms_norm --set eps=tiny", "rms_norm: eps must be a number from 0 up; this is str 'tiny'"),
        ("rms_norm --set eps=true", "rms_norm: eps must be a number from 0 up; this is "),
        (
            "rms_norm --format row --format x=row",
            "--format row is for every argument, so it stands alone; beside others",
        ),
        ("rms_norm --format x=row --format x=tensor", "--format gives x twice: row and tensor"),
        ("rms_norm --set eps=1 --set eps=2", "--set gives eps twice"),
        (
            "rms_norm --set weigth_offset=1",
            "--set: rms_norm: unknown parameter 'weigth_offset'; did you mean 'weight_offset'?",
        ),
        (
            "attention --set sinks=true",
            "--set sinks: sinks is a tensor of attention; say that it is given by its shape or dtype",
        ),
        ("add --set target=1", "--set: add: unknown parameter 'target'; none is known"),
        ("add --use tritn.add", "command line: use: unknown kernel or plugin 'tritn.add'; did you mean 'triton.add'?"),
    ],
)
def test_bad_input_is_told_with_what_is_accepted(run: Callable, arguments: str, message: str) -> None:
    ran = run(f"explain {arguments}")
    assert ran.status == 2
    assert ran.out == ""
    assert ran.err.startswith(f"portakernel: {message.removesuffix('?')}")


SOFTCAP = "explain attention --device cpu --dtype float32 --shape q=1x8x4x64 --set softcap=30.0 --phase backward"
UNFUSED = "explain linear_act --device cpu --dtype float32 --set activation=none --phase backward"


@pytest.mark.parametrize(
    ("command", "kernel"),
    [
        (SOFTCAP, "torch.attention_math"),
        (f"{SOFTCAP} --saved-by torch.attention_math", "torch.attention_math"),
        (f"{SOFTCAP} --use torch.attention_math", "torch.attention_math"),
        (f"{SOFTCAP} --saved-by torch.attention_math --use reference", "torch.attention_math"),
        (UNFUSED, "torch.linear_act_unfused"),
        (f"{UNFUSED} --saved-by torch.linear_act_unfused", "torch.linear_act_unfused"),
    ],
)
def test_a_gradient_that_pytorch_records_is_said_to_call_no_backward_kernel(
    run: Callable, command: str, kernel: str
) -> None:
    ran = run(command)
    recorded = "it runs forward in training, where PyTorch records its gradient; no backward kernel is called."
    assert (ran.status, ran.out.splitlines()[2]) == (0, f"{kernel} serves it: {recorded}")


def test_a_call_with_tensors_is_told_the_same_of_its_gradient() -> None:
    torch = pytest.importorskip("torch")
    q = torch.ones(1, 8, 4, 64)
    decision = portakernel.explain("attention", q, q, q, softcap=30.0, phase="backward")
    assert decision.chosen is not None
    assert decision.chosen.name == "torch.attention_math"


@pytest.mark.parametrize(
    ("op", "text"),
    [
        ("quantize_fp8", "quantize_fp8 has no gradient, so that no kernel serves it for backward"),
        ("scaled_mm", "scaled_mm has no gradient, so that no kernel serves it for backward"),
        (
            "add",
            (
                "add needs no kernel for backward: the gradient of its output is passed on as it is; ask for the phase"
                " training to see who runs forward"
            ),
        ),
    ],
)
def test_an_op_without_a_backward_kernel_is_no_question_for_backward(run: Callable, op: str, text: str) -> None:
    ran = run(f"explain {op} --target h100 --phase backward")
    assert (ran.status, ran.err) == (2, f"portakernel: {text}\n")


def test_all_ops_for_backward_are_those_with_a_backward(run: Callable) -> None:
    having = [op for op, described in sorted(dispatcher().registry.ops.items()) if described.gradient == "kernel"]
    told = run("explain --all --target h100 --phase backward --json").json["decisions"]
    assert [decision["op"] for decision in told] == having
    assert len(run("explain --all --target h100 --phase training --json").json["decisions"]) == len(
        dispatcher().registry.ops
    )


THOSE = (
    "those that can have run forward are torch.rms_norm, torch.rms_norm_recorded, torch.rms_norm_cpu,"
    " torch.rms_norm_xpu, triton.rms_norm"
)


@pytest.mark.usefixtures("_two_plugins")
@pytest.mark.parametrize(
    ("saver", "text"),
    [
        ("torch.rms_nrm_cpu", "rms_norm: saved_by: unknown kernel 'torch.rms_nrm_cpu'; did you mean {}?"),
        ("torch", f"rms_norm: saved_by names one kernel, and 'torch' is a plugin; {THOSE}, reference.rms_norm"),
        ("torch.add", f"rms_norm: saved_by names torch.add, which is a kernel of add; {THOSE}, reference.rms_norm"),
        (
            "torch.rms_norm_mps",
            (
                "rms_norm: saved_by names torch.rms_norm_mps, which does not save rstd for backward;"
                f" {THOSE}, reference.rms_norm"
            ),
        ),
    ],
)
def test_only_a_kernel_that_can_have_run_forward_can_have_saved(run: Callable, saver: str, text: str) -> None:
    ran = run(f"explain rms_norm --target cpu:x86_64 --phase backward --saved-by {saver}")
    close = "'torch.rms_norm_cpu' or 'torch.rms_norm_xpu' or 'torch.rms_norm'"
    assert (ran.status, ran.err) == (2, f"portakernel: {text.format(close)}\n")


@pytest.mark.parametrize("phase", ["inference", "training"])
def test_who_saved_is_a_question_about_backward_alone(run: Callable, phase: str) -> None:
    ran = run(f"explain rms_norm --target h100 --phase {phase} --saved-by triton.rms_norm")
    text = f"saved_by='triton.rms_norm' says who ran forward, for the phase backward; this is for {phase}"
    assert (ran.status, ran.err) == (2, f"portakernel: {text}\n")


def test_what_is_advised_of_a_mismatch_makes_the_kernel_serve(run: Callable) -> None:
    asked = "explain attention --device cpu --dtype float32 --shape q=1x8x4x64 --phase backward"
    ran = run(f"{asked} --saved-by reference.attention")
    kernel = "torch.attention_flash_cpu"
    step = f"For {kernel}: run forward with {kernel} too, and ask with `--saved-by {kernel}`."
    assert step in [line.strip() for line in ran.out.splitlines()]
    followed = run(f"{asked} --saved-by {kernel} --json")
    assert (followed.status, followed.json["chosen"]) == (0, kernel)
