"""``portakernel explain --all`` and ``portakernel diff`` of what it wrote."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from portakernel import __version__
from portakernel.cli.explain.decision_sheet import default_dtypes
from portakernel.contracts import own_contracts
from portakernel.runtime import dispatcher

TWO = "explain --all --target h100 --target mi300x --json"


@pytest.fixture
def write(run: Callable, tmp_path: Path) -> Callable[..., Path]:
    """Writes what a command line prints, or data, into a file of this name."""

    def to_file(name: str, what: str | dict[str, Any]) -> Path:
        path = tmp_path / name
        path.write_text(run(what).out if isinstance(what, str) else json.dumps(what), encoding="utf-8")
        return path

    return to_file


# --- explain, of several ---------------------------------------------------------------------------------------------


def test_all_ops_on_several_targets_are_asked_at_once(run: Callable) -> None:
    ran = run(TWO)
    data = ran.json
    assert ran.status == 0
    assert list(data) == ["schema_version", "portakernel", "targets", "decisions"]
    assert (data["schema_version"], data["portakernel"]) == (1, __version__)
    assert data["targets"] == ["nvidia:sm_90", "amd:gfx942"]
    asked = [(decision["op"], decision["target"]) for decision in data["decisions"]]
    assert asked == [(op, target) for target in data["targets"] for op in sorted(dispatcher().registry.ops)]
    (one,) = [d for d in data["decisions"] if (d["op"], d["target"]) == ("rms_norm", "amd:gfx942")]
    assert one == run("explain rms_norm --target amd:gfx942 --dtype bfloat16 --json").json


def test_each_op_is_asked_in_a_dtype_that_it_takes_natively_there() -> None:
    registry = dispatcher().registry
    for op in registry.ops:
        assert default_dtypes(op, registry.target("h100"), registry)
    assert default_dtypes("rms_norm", registry.target("h100"), registry) == {"x": "bfloat16", "weight": "bfloat16"}
    assert default_dtypes("rms_norm", registry.target("cpu:x86_64"), registry) == {"x": "float32", "weight": "float32"}
    assert default_dtypes("scaled_mm", registry.target("h100"), registry)["a"] == "float8_e4m3fn"
    assert default_dtypes("scaled_mm", registry.target("mi300x"), registry)["a"] == "float8_e4m3fnuz"
    assert default_dtypes("cross_entropy", registry.target("v100"), registry) == {
        "logits": "bfloat16",
        "target": "int64",
    }


def test_a_dtype_is_every_ops_that_takes_it(run: Callable) -> None:
    data = run("explain --all --target h100 --dtype float16 --json").json
    dtypes = {decision["op"]: decision["request"]["dtypes"] for decision in data["decisions"]}
    assert dtypes["rms_norm"] == {"x": "float16", "weight": "float16"}
    assert dtypes["scaled_mm"]["a"] == "float8_e4m3fn"


def test_one_op_is_counted_as_one(run: Callable) -> None:
    lines = run("explain rms_norm --target h100 --target mi300x --dtype bfloat16").out.splitlines()
    assert lines.count("  1 op: 1 by kernels, 0 by the reference, 0 by none") == 2


def test_ops_that_are_not_in_the_dtype_that_was_asked_for_are_named(run: Callable) -> None:
    out = run("explain --all --target h100 --dtype float16").out
    others = "dequantize, moe_sort, scaled_mm"
    assert out.endswith(f"\n  Not in float16, which their arguments cannot be, but in dtypes of their own: {others}\n")
    assert "Not in" not in run("explain --all --target h100").out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "--all --target h100 --dtype int16",
            (
                "no op is asked in int16: their arguments can be bfloat16, float16, float32, float8_e4m3fn,"
                " float8_e4m3fnuz, float8_e5m2, float8_e5m2fnuz, int32, int64; give one of these"
            ),
        ),
        (
            "add --target h100 --target mi300x --dtype int16",
            "add: x and y cannot be int16; x and y can be float32, float16 or bfloat16",
        ),
    ],
)
def test_a_dtype_that_nothing_asked_can_have_is_refused(run: Callable, line: str, message: str) -> None:
    ran = run(f"explain {line}")
    assert (ran.status, ran.out, ran.err) == (2, "", f"portakernel: {message}\n")


def test_people_read_a_table_for_each_target(run: Callable) -> None:
    lines = run("explain --all --target h100 --target mi300x").out.splitlines()
    assert lines[:3] == ["h100 is nvidia:sm_90.", "mi300x is amd:gfx942.", ""]
    at = lines.index("nvidia:sm_90, Hopper (H100, H200, GH200), for inference")
    assert lines[at + 1].split() == ["op", "dtypes", "kernel", "next"]
    assert lines[at + 2].split() == ["add", "bfloat16", "triton.add", "torch"]
    # an op of another package's, such as the OpenCL example's, has no kernel there
    count, ours = len(dispatcher().registry.ops), len(own_contracts())
    told = f"  {count} ops: {ours} by kernels, {count - ours} by the reference, 0 by none"
    assert lines[at + 2 + count] == told
    assert max(map(len, lines)) <= 100


def test_a_table_says_what_nothing_serves(run: Callable) -> None:
    lines = run("explain --all --target h100 --deny triton --deny reference").out.splitlines()
    assert ["quantize_fp4", "bfloat16", "none"] in [line.split() for line in lines]


def test_one_op_on_several_targets_is_such_a_table_too(run: Callable) -> None:
    ran = run("explain rms_norm --target h100 --target nvidia:sm_90 --target mi300x --json")
    assert [decision["target"] for decision in ran.json["decisions"]] == ["nvidia:sm_90", "amd:gfx942"]


def test_an_op_that_none_can_serve_ends_it_with_1(run: Callable) -> None:
    assert run("explain --all --target h100 --deny triton --deny reference --json").status == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("explain", "explain: give an op, or --all for every op; not both"),
        ("explain add --all", "explain: give an op, or --all for every op; not both"),
        (
            "explain --all --shape x=4 --set eps=1",
            "explain: --shape, --set is about one call: give one op, and one --target",
        ),
        (
            "explain --all --dtype x=float16",
            "explain: of several decisions --dtype is one, for every op that takes it",
        ),
        (
            "explain add --target h100 --device cpu",
            "explain takes a target (h100) or a device of this machine (cpu), not both",
        ),
        ("explain add --fact x", "--fact 'x' says nothing of a tensor's memory; write ARG.FACT=VALUE, such as"),
        ("explain add --fact x.alignment=2 --fact x.alignment=4", "--fact gives x.alignment twice"),
        ("explain add --fact z.alignment=2", "add: unknown layout fact 'z.alignment'; did you mean 'y.alignment' or"),
        ("explain add --require quick", "command line: unknown property 'quick'; known: batch_invariant, "),
        ("explain add --reference never", "command line: unknown reference mode 'never'; known: allow, forbid, warn"),
    ],
)
def test_what_does_not_go_together_is_told(run: Callable, line: str, message: str) -> None:
    ran = run(line)
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith(f"portakernel: {message}")


# --- diff ------------------------------------------------------------------------------------------------------------


def test_a_file_does_not_differ_from_itself(run: Callable, write: Callable) -> None:
    file = write("a.json", TWO)
    ran = run("diff", str(file), str(file))
    count = 2 * len(dispatcher().registry.ops)
    assert (ran.status, ran.out) == (
        0,
        f"{count} decisions compared: 0 chose another kernel, {count} are the same\n",
    )
    data = run("diff", str(file), str(file), "--json").json
    assert data == {"choices_differ": False, "changed": [], "same": count, "only_old": [], "only_new": []}


def test_another_choice_is_told_with_its_reasons_and_ends_with_1(run: Callable, write: Callable) -> None:
    old, new = (
        write("a.json", "explain --all --target h100 --json"),
        write("b.json", "explain --all --target h100 --deny triton.add --json"),
    )
    ran = run("diff", str(old), str(new))
    count = len(dispatcher().registry.ops)
    assert ran.status == 1
    assert ran.out.splitlines() == [
        "",
        "Another kernel is chosen",
        "  add on nvidia:sm_90 for inference: triton.add -> torch.add",
        "    before: highest priority 60, before 40 of torch.add",
        "    now: highest priority 40, before 5 of hip.add_nvidia",
        "",
        "Kernels that came, went, or stand otherwise",
        "  op   target        kernel      what changed",
        "  add  nvidia:sm_90  triton.add  was able to serve; is denied_by_policy (denied by command line)",
        "",
        f"{count} decisions compared: 1 chose another kernel, {count - 1} are the same",
    ]
    data = run("diff", str(old), str(new), "--json").json
    assert list(data) == ["choices_differ", "changed", "same", "only_old", "only_new"]
    (changed,) = data["changed"]
    assert list(changed) == [
        "op", "target", "phase", "chosen", "why", "asked_differs", "appeared", "disappeared", "reasons",
    ]  # fmt: skip
    assert changed["chosen"] == {"old": "triton.add", "new": "torch.add"}
    assert changed["reasons"] == [
        {
            "kernel": "triton.add",
            "status": {"old": "chosen", "new": "rejected"},
            "rejections": {
                "old": [],
                "new": [{"code": "denied_by_policy", "text": "denied by command line", "parameter": None}],
            },
        }
    ]


def test_kernels_that_come_and_go_and_reasons_that_change_are_told_without_changing_the_status(
    run: Callable, write: Callable
) -> None:
    before = run("explain add --target h100 --target mi300x --json").json
    after = copy.deepcopy(before)
    candidates = after["decisions"][0]["candidates"]
    gone = candidates.pop()
    candidates.append({"kernel": "acme.add", "status": "eligible", "rejections": [], "new key": 1})
    other = next(one for one in candidates if one["status"] == "rejected")
    other["rejections"] = [{"code": "driver", "text": "is too old", "parameter": None}]
    ran = run("diff", str(write("a.json", before)), str(write("b.json", after)), "--json")
    assert ran.status == 0
    (changed,) = ran.json["changed"]
    assert (changed["appeared"], changed["disappeared"]) == (["acme.add"], [gone["kernel"]])
    assert [reason["kernel"] for reason in changed["reasons"]] == [other["kernel"]]
    assert ran.json["same"] == 1


def test_who_lost_to_whom_is_no_reason_of_its_own(run: Callable, write: Callable) -> None:
    before = run("explain add --target h100 --target mi300x --json").json
    after = copy.deepcopy(before)
    second = after["decisions"][0]["candidates"][1]
    assert second["status"] == "eligible"
    second["rejections"][0]["text"] = "priority 40 is below 61 of acme.add"
    ran = run("diff", str(write("a.json", before)), str(write("b.json", after)), "--json")
    assert (ran.status, ran.json["changed"]) == (0, [])


def test_a_decision_that_the_new_file_lacks_ends_with_1_and_one_that_it_adds_with_0(
    run: Callable, write: Callable
) -> None:
    one, two = write("a.json", "explain --all --target h100 --json"), write("b.json", TWO)
    assert run("diff", str(one), str(two)).status == 0
    ran = run("diff", str(two), str(one), "--json")
    assert (ran.status, ran.json["choices_differ"], ran.json["changed"]) == (1, True, [])
    assert ran.json["only_old"][0] == {"op": "add", "target": "amd:gfx942", "phase": "inference"}
    assert "Only in the first file\n  add " in run("diff", str(two), str(one)).out


def test_other_questions_are_told(run: Callable, write: Callable) -> None:
    one = write("a.json", "explain --all --target h100 --json")
    two = write("b.json", "explain --all --target h100 --dtype float16 --json")
    data = run("diff", str(one), str(two), "--json").json
    assert {changed["op"] for changed in data["changed"] if changed["asked_differs"]} >= {"add", "rms_norm"}


def test_files_that_have_nothing_in_common_are_not_compared(run: Callable, write: Callable) -> None:
    one, two = (
        write("a.json", "explain --all --target h100 --json"),
        write("b.json", "explain --all --target a100 --json"),
    )
    ran = run("diff", str(one), str(two))
    assert (ran.status, ran.out) == (2, "")
    assert ran.err == (
        "portakernel: the two files have no op, target and phase in common, so that nothing can be compared:"
        " nvidia:sm_90 in the first, nvidia:sm_80 in the second\n"
    )
