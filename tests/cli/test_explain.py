"""``portakernel explain``."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import portakernel

MI300X = "explain rms_norm --target amd:gfx942 --dtype bfloat16 --shape x=4096x8192"


def test_json_is_the_decision_key_by_key(run: Callable) -> None:
    ran = run(f"{MI300X} --json")
    data = ran.json
    assert ran.status == 0
    assert list(data) == ["op", "target", "request", "chosen", "why", "candidates"]
    assert list(data["request"]) == [
        "phase", "dtypes", "dims", "facts", "features", "formats", "requires", "attached", "device",
    ]  # fmt: skip
    assert data["op"] == "rms_norm"
    assert data["target"] == "amd:gfx942"
    assert data["request"]["dims"] == {"M": 4096, "N": 8192}
    assert data["request"]["dtypes"] == {"x": "bfloat16", "weight": "bfloat16"}
    assert data["chosen"] == data["candidates"][0]["kernel"]
    for candidate in data["candidates"]:
        assert list(candidate) == ["kernel", "status", "priority", "rejections", "target", "assumed"]
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


def test_people_read_the_winner_first_then_each_loser_with_its_reason(run: Callable) -> None:
    lines = run(MI300X).out.splitlines()
    assert lines[:6] == [
        "rms_norm on amd:gfx942 with x bfloat16, weight bfloat16, M=4096, N=8192",
        "",
        "chosen    triton.rms_norm     60  highest priority: 60, before 40 of torch.rms_norm",
        "eligible  torch.rms_norm      40  lower_priority: priority 40 is below 60 of triton.rms_norm",
        "eligible  reference.rms_norm   0  lower_priority: the reference comes last; triton.rms_norm serves",
        "rejected  torch.rms_norm_cpu  40  vendor: serves cpu, not amd",
    ]
    assert lines[7] == "Assumed, because amd:gfx942 was not probed:"
    assert "  triton.rms_norm     the device passes the plugin's readiness probe" in lines


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
    assert ran.out.splitlines()[1].startswith("on this machine's ")
    assert run("explain add --json").json["request"]["device"] is not None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("rms_nrom", "unknown op 'rms_nrom'; did you mean 'rms_norm'?"),
        ("rms_norm --target amd:gfx943", "unknown amd arch 'gfx943'; did you mean 'gfx942' or 'gfx950' or 'gfx90a'?"),
        ("rms_norm --target amdd:gfx942", "unknown vendor 'amdd'; did you mean 'amd'?"),
        (
            "rms_norm --target gfx942",
            "target 'gfx942' is not of the form vendor:arch, such as nvidia:sm_90 or amd:gfx942",
        ),
        ("rms_norm --dtype bf16", "unknown dtype 'bf16'; did you mean 'bfloat16'?"),
        (
            "rms_norm --dtype bfloat16 --dtype x=float32",
            "--dtype bfloat16 says the dtype of every argument, so it stands alone; beside others write ARG=DTYPE",
        ),
        ("rms_norm --dtype x=float32 --dtype x=float16", "--dtype gives x twice: float32 and float16"),
        ("rms_norm --shape x=4096,8192", "--shape 'x=4096,8192' is not a shape; write ARG=AxBxC, such as x=4096x8192"),
        ("rms_norm --shape x=-1x4", "--shape 'x=-1x4' is not a shape; write ARG=AxBxC, such as x=4096x8192"),
        ("rms_norm --shape x=4x4 --shape x=4x4", "--shape gives x twice"),
        ("rms_norm --set eps", "--set 'eps' is not NAME=NUMBER, such as eps=1.0"),
        ("rms_norm --set eps=1 --set eps=2", "--set gives eps twice"),
        (
            "rms_norm --set weigth_offset=1",
            "--set: rms_norm: unknown parameter 'weigth_offset'; did you mean 'weight_offset'?",
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
