"""``portakernel plan export``, ``check``, ``diff`` and ``lock``."""

from __future__ import annotations

import errno
import functools
import os
import re
import stat
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cxx import needs_cxx

from portakernel import runtime
from portakernel.cli.plan import export
from portakernel.contracts import contract
from portakernel.deciding.asking import ask
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.errors import ArgumentValueError, PlanError
from portakernel.plan import Place, read_form, read_plan
from portakernel.plan.export import make_plan
from portakernel.plan.writing import write_plan
from portakernel.runtime import dispatcher
from portakernel.tensors.units import units_of
from portakernel.tuning.choices import Choice, Choices
from portakernel.tuning.key import Key, Kind, Regime
from portakernel.tuning.record import Record
from portakernel.tuning.sources import contract_digest
from portakernel.tuning.store import Writer, folder_of
from portakernel.words.target import Target

H200 = Place("nvidia:sm_90", 132)
CALLS = """\
calls:
  - {op: rms_norm, dtype: bfloat16, shape: {x: [64, 4096], weight: [4096]}}
  - {op: rms_norm, dtype: bfloat16, shape: {x: [8, 8, 4096], weight: [4096]}}
  - {op: softmax, dtype: float16, shape: {x: [64, 100]}, training: true}
  - {op: softmax, dtype: float32, shape: {x: [64, 100]}, kernel: torch}
"""


def kind(op: str, dtypes: Any = "bfloat16", **values: Any) -> Kind:
    asked = ask(contract(op), Target.parse(H200.target), dtypes=dtypes, values=values)
    return Kind.of(asked, dispatcher().registry.for_op(op))


def here() -> Place:
    device = dispatcher().registry.device("cpu")
    return Place(str(device.target), units_of(device) or 0)


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., Path]:
    """Writes a plan of choices by place."""

    def to_file(choices: dict[Place, list[Choice]], name: str = "plan.yaml") -> Path:
        path = tmp_path / name
        write_plan(make_plan(choices, dispatcher().registry), path)
        return path

    return to_file


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    path = tmp_path / "calls.yaml"
    path.write_text(CALLS, encoding="utf-8")
    return path


def norm(**bounds: tuple[int, int]) -> Choice:
    return Choice("triton.rms_norm", kind("rms_norm"), bounds, "", "4.4 µs")


# --- export ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Choice]]:
    """What measurements decide, by op."""
    found: dict[str, list[Choice]] = {}

    def choices(now: Any, place: Place, ops: list[str], regime: str, undecided: Counter[str]) -> Iterator[Choice]:
        for op in ops:
            yield from Choices(found.get(op, ())).all

    monkeypatch.setattr(export, "_measured", choices)
    return found


def test_what_was_measured_is_written_and_would_be_followed(
    run: Callable, tmp_path: Path, measured: dict[str, list[Choice]]
) -> None:
    measured["softmax"] = [Choice("reference.softmax", kind("softmax", "float32"), {"M": (1, 64)}, "", "2 µs")]
    path = tmp_path / "plan.yaml"
    ran = run("plan", "export", "-o", str(path))
    plan = read_form(path)
    assert ran.out == f"{here()}: 1 entries\n{path}: written; {plan.digest}\n"
    assert [(op, entry.kernel, entry.comment) for _, op, entry in plan.entries()] == [
        ("softmax", "reference.softmax", "2 µs")
    ]
    assert plan.made_with[here()].torch
    assert plan.lock == "listed"
    checked = run("plan", "check", str(path))
    assert checked.status == 0, checked.out
    assert checked.out.startswith(f"plan.yaml: 1 entries can be followed on {here()}\n")


def test_nothing_that_was_measured_is_a_plan_too(run: Callable, tmp_path: Path, measured: dict[str, Any]) -> None:
    path = tmp_path / "plan.yaml"
    assert run("plan", "export", "-o", str(path), "--json").json["entries"] == {str(here()): 0}
    assert run("plan", "check", str(path)).status == 0


def test_other_targets_parts_stay_and_ops_and_calls_narrow_it_down(
    run: Callable, calls: Path, made: Callable[..., Path], measured: dict[str, list[Choice]]
) -> None:
    path = made({H200: [norm(M=(1, 64))]})
    measured["softmax"] = [Choice("reference.softmax", kind("softmax", "float32"), {}, "")]
    measured["rms_norm"] = [
        Choice("reference.rms_norm", kind("rms_norm"), {"M": (64, 64)}, ""),
        Choice("reference.rms_norm", kind("rms_norm"), {"M": (65, 99)}, ""),
    ]
    assert run("plan", "export", "-o", str(path), "--op", "softmax").status == 0
    assert {str(place): list(ops) for place, ops in read_form(path).parts.items()} == {
        str(here()): ["softmax"],
        str(H200): ["rms_norm"],
    }
    assert run("plan", "export", "-o", str(path), "--calls", str(calls)).status == 0
    assert [entry.bounds for place, _, entry in read_form(path).entries() if place == here()] == [{"M": (64, 64)}]
    target = str(here())
    assert run("plan", "export", "-o", str(path), "--target", target, "--op", "softmax", "--json").json["entries"] == {
        target: 1
    }


def test_what_a_file_loses_is_said_and_counted(
    run: Callable, made: Callable[..., Path], calls: Path, measured: dict[str, list[Choice]]
) -> None:
    softmax = kind("softmax", "float32")
    slow_norm = Choice("reference.rms_norm", kind("rms_norm"), {"M": (1, 64)}, "")

    def before() -> Path:
        file = made({here(): [Choice("reference.softmax", softmax, {"M": (1, 64)}, ""), slow_norm], H200: [norm()]})
        assert run("plan", "lock", str(file), "--calls", str(calls)).status == 0
        return file

    measured["softmax"] = [Choice("torch.softmax", softmax, {"M": (1, 99)}, "")]
    told = run("plan", "export", "-o", str(path := before())).out
    # rms_norm's two calls and softmax's two for training had entries of their own; softmax's wider one covers its old
    assert f"of 4 entries that {path} had calls have no kernel now: rms_norm {{dtype: bfloat16, M: 1..64}}; " in told
    assert f"{path} had `lock: everything`, and has `lock: listed` now: its calls are decided elsewhere again" in told
    found = run("plan", "export", "-o", str(before()), "--json").json
    assert (found["gone"], found["lock"], found["lock_before"]) == ({str(here()): 4}, "listed", "everything")
    again = run("plan", "export", "-o", str(path), "--json").json
    assert (again["gone"], again["lock_before"]) == ({str(here()): 0}, "listed")
    fresh = run("plan", "export", "-o", str(path.with_name("fresh.yaml")), "--json").json
    assert (fresh["gone"], fresh["lock_before"]) == ({str(here()): 0}, None)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--op", "softmx"], "unknown op 'softmx'; did you mean 'softmax'"),
        (["--regime", "graph"], "unknown regime 'graph'; did you mean 'graph/warm' or 'graph/cold'?"),
        (
            ["--target", "nvidia:sm_100"],
            "--target 'nvidia:sm_100': nothing was measured on nvidia:sm_100, and none",
        ),
        (["--target", "nvidia:sm_90/many"], "'nvidia:sm_90/many': found 'many' for units; write VENDOR:ARCH, or"),
        (["--target", "nvdia:sm_90/132"], "unknown vendor 'nvdia'; did you mean 'nvidia'?"),
    ],
)
def test_a_wrong_word_is_told(run: Callable, tmp_path: Path, words: list[str], said: str) -> None:
    ran = run("plan", "export", "-o", str(tmp_path / "plan.yaml"), *words)
    assert ran.status == 2
    assert said in ran.err


def test_a_file_that_is_no_plan_is_not_written_over(run: Callable, tmp_path: Path, measured: dict[str, Any]) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("dear diary\n", encoding="utf-8")
    assert run("plan", "export", "-o", str(path)).status == 2
    assert path.read_text(encoding="utf-8") == "dear diary\n"


def test_a_plan_is_replaced_at_once_or_not(run: Callable, made: Callable[..., Path], measured: dict[str, Any]) -> None:
    path = made({H200: [norm()]})
    before = path.stat().st_ino
    assert run("plan", "export", "-o", str(path)).status == 0
    assert path.stat().st_ino != before
    assert [file.name for file in path.parent.iterdir()] == ["plan.yaml"]
    ran = run("plan", "export", "-o", str(path.parent / "none" / "plan.yaml"))
    assert (ran.status, "cannot be written" in ran.err) == (2, True)


def test_who_may_read_a_plan_stays_as_it_was(made: Callable[..., Path]) -> None:
    path = made({})
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    path.chmod(0o600)
    assert stat.S_IMODE(made({H200: [norm()]}).stat().st_mode) == 0o600


def test_a_plan_is_written_where_one_can_be_and_makes_no_other_file(
    made: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(**_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "TemporaryFile", refused)
    path = made({})
    before = path.read_bytes()
    monkeypatch.setattr(tempfile, "mkstemp", refused)
    with pytest.raises(ArgumentValueError, match=r"plan\.yaml cannot be written: Read-only file system; give a file"):
        made({H200: [norm()]})
    assert path.read_bytes() == before


def test_a_plan_is_a_regular_file_and_a_link_to_one_stays(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").symlink_to("real.yaml")
    write_plan(make_plan({}, dispatcher().registry), tmp_path / "plan.yaml")
    assert (tmp_path / "plan.yaml").is_symlink()
    assert "schema_version" in (tmp_path / "real.yaml").read_text(encoding="utf-8")
    with pytest.raises(ArgumentValueError, match="/dev/full is no regular file, but a device"):
        write_plan(make_plan({}, dispatcher().registry), Path("/dev/full"))


# --- check -----------------------------------------------------------------------------------------------------------


def test_a_kernel_that_cannot_serve_what_it_is_given_is_told(run: Callable, made: Callable[..., Path]) -> None:
    path = made(
        {H200: [norm(M=(1, 512), N=(4096, 4096)), Choice("hip.rms_norm", kind("rms_norm"), {"M": (513, 900)}, "")]}
    )
    ran = run("plan", "check", str(path), "--target", "h100", "--json")
    assert ran.status == 1
    (refused,) = ran.json["refused"]
    assert (refused["target"], refused["op"], refused["kernel"]) == (str(H200), "rms_norm", "hip.rms_norm")
    assert any("nvidia" in reason for reason in refused["reasons"])
    assert ran.json["targets"] == [str(H200)]
    text = run("plan", "check", str(path), "--target", "all")
    assert "plan.yaml: 1 of 2 entries would be refused on nvidia:sm_90/132" in text.out


STEP = """\
schema_version: 1
plugin: acme
kernels:
  - op: softmax
    entry: acme_for_cli_tests:softmax
    targets: {cpu: any}
    dtypes: {x: [float32]}
    priority: 10
    limits: {N: {multiple_of: 8, max: 4096}}
"""


def test_sizes_between_that_a_kernel_cannot_serve_are_found_and_not_exported(
    run: Callable, install: Callable, made: Callable[..., Path], measured: dict[str, list[Choice]], tmp_path: Path
) -> None:
    install("acme", manifest=STEP, source="def softmax(x, *, out=None):\n    return x.softmax(-1)\n")
    whole = Choice("acme.softmax", kind("softmax", "float32"), {"M": (1, 9), "N": (1024, 4096)}, "", "2 µs")
    ran = run("plan", "check", str(made({here(): [whole]})), "--json")
    assert ran.status == 1, ran.out
    assert [(one["sizes"], one["reasons"]) for one in ran.json["refused"]] == [
        ("M=1, N=1025", ["needs N <= 4096 and a multiple of 8; this is 1025"])
    ]
    beyond = Choice("acme.softmax", kind("softmax", "float32"), {"M": (10, 19), "N": (1024, 8192)}, "", "2 µs")
    measured["softmax"] = [whole, beyond]
    path = tmp_path / "exported.yaml"
    ran = run("plan", "export", "-o", str(path), "--json")
    assert (ran.json["entries"], ran.json["left_out"]) == ({str(here()): 2}, {str(here()): 1})
    assert [entry.bounds for *_, entry in read_form(path).entries()] == [
        {"M": (1, 9), "N": (1024, 1024)},
        {"M": (1, 9), "N": (4096, 4096)},
    ]
    assert run("plan", "check", str(path)).status == 0
    assert (
        "1 decisions are left out: their kernels cannot serve such calls now"
        in run("plan", "export", "-o", str(path)).out
    )


@needs_cxx
def test_a_kernel_that_is_built_ahead_of_calls_is_noted_and_not_refused(
    run: Callable, made: Callable[..., Path], measured: dict[str, list[Choice]], tmp_path: Path
) -> None:
    built = Choice("inductor.rms_norm", kind("rms_norm", "float32"), {"M": (64, 64), "N": (4096, 4096)}, "")
    ran = run("plan", "check", str(made({here(): [built]})), "--json")
    assert (ran.status, ran.json["refused"]) == (0, [])
    text = "inductor.rms_norm is built ahead of calls: have `portakernel warmup` do it where the plan is followed"
    assert ran.json["notes"] == [text]
    measured["rms_norm"] = [built]
    exported = run("plan", "export", "-o", str(tmp_path / "other.yaml"), "--json").json
    assert (exported["entries"], exported["left_out"]) == ({str(here()): 1}, {str(here()): 0})
    assert read_form(tmp_path / "other.yaml").regime == "eager/cold"


def test_denied_kernels_would_be_refused(
    run: Callable, made: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = made(
        {here(): [Choice("torch.rms_norm_cpu", kind("rms_norm", "float32"), {"M": (64, 64), "N": (64, 64)}, "")]}
    )
    assert run("plan", "check", str(path)).status == 0
    monkeypatch.setenv("PORTAKERNEL_DENY", "torch")
    monkeypatch.setattr("portakernel.runtime._dispatcher", functools.cache(type(dispatcher())))
    ran = run("plan", "check", str(path))
    assert ran.status == 1
    assert "torch.rms_norm_cpu cannot serve it at M=64, N=64: denied by " in ran.out


def test_a_plan_that_is_in_force_says_nothing_of_another(
    run: Callable, made: Callable[..., Path], calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = tmp_path / "locked.yaml"
    assert run("plan", "lock", str(locked), "--calls", str(calls)).status == 0
    monkeypatch.setenv("PORTAKERNEL_PLAN", str(locked))
    monkeypatch.setattr("portakernel.runtime._dispatcher", functools.cache(type(dispatcher())))
    other = made({here(): [Choice("reference.rms_norm", kind("rms_norm"), {}, "")]})
    assert run("plan", "check", str(other)).status == 0
    assert run("plan", "lock", str(other), "--calls", str(calls)).status == 0


def test_names_and_sources_that_are_not_here_are_problems(run: Callable, made: Callable[..., Path]) -> None:
    path = made({here(): [Choice("reference.softmax", kind("softmax", "float32"), {}, "")], H200: [norm()]})
    text = path.read_text(encoding="utf-8")
    text = text[: text.index("digest:")].replace(read_form(path).pins["reference.softmax"].source, "0123456789abcdef")
    path.write_text(text, encoding="utf-8")
    ran = run("plan", "check", str(path), "--json")
    assert ran.status == 1
    (problem,) = ran.json["problems"]
    assert problem.startswith(f"{path}:6: kernels.reference.softmax: its source is ")
    assert problem.endswith(" here, and 0123456789abcdef in the plan")
    assert run("plan", "check", str(path), "--target", "h100").status == 0


def test_a_digest_that_is_asked_for_is_held_against_it(run: Callable, made: Callable[..., Path]) -> None:
    path = made({here(): []})
    digest = read_form(path).digest
    assert run("plan", "check", str(path), "--digest", digest).status == 0
    ran = run("plan", "check", str(path), "--digest", f"sha256:{'0' * 64}")
    assert ran.status == 1
    assert f"digest: is {digest}; sha256:000" in ran.out


def test_what_is_no_plan_is_refused_and_what_is_not_there_has_no_answer(run: Callable, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    assert run("plan", "check", str(path)).err.startswith(f"portakernel: {path} is not there; `portakernel plan export")
    os.mkfifo(path)
    ran = run("plan", "check", str(path), "--json")
    assert (ran.status, ran.json["digest"]) == (1, None)
    assert ran.json["problems"] == [f"{path}: is a named pipe; a regular file is accepted"]
    assert run("plan", "check", str(path)).out.endswith("The plan is refused: 1 problem\n")


def test_a_part_that_is_not_there_is_told(run: Callable, made: Callable[..., Path]) -> None:
    path = made({H200: [norm()]})
    ran = run("plan", "check", str(path), "--target", "amd:gfx942")
    assert (ran.status, ran.err) == (
        2,
        "portakernel: plan.yaml has no part for amd:gfx942; its parts: nvidia:sm_90/132\n",
    )
    assert "0 entries can be followed on no part (it has none for this machine" in run("plan", "check", str(path)).out


def test_records_that_decide_nothing_here_are_counted_with_the_reason(
    run: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    monkeypatch.setenv("PORTAKERNEL_TUNING_DIR", str(store))
    key = Key(kind("softmax", "float32"), *here(), Regime.EAGER_COLD, {"M": 8, "N": 64})
    known = contract_digest(contract("softmax"))
    with Writer(folder_of(store, *here()), "softmax") as writer:
        writer.write(Record(key, known, {}, "2026-11-27T00:00:00Z", busy=True))
        writer.write(Record(replace(key, dims={"M": 9, "N": 64}), "9f1c", {}, "2026-11-27T00:00:00Z"))
    path = str(tmp_path / "plan.yaml")
    reasons = {
        "others used the device while it was measured": 1,
        "the contract of softmax has changed since it was measured": 1,
    }
    assert run("plan", "export", "-o", path, "--json").json["undecided"] == {str(here()): reasons}
    out = run("plan", "export", "-o", path).out
    assert "  2 calls that were measured decide nothing here:\n    1: " in out


# --- diff ------------------------------------------------------------------------------------------------------------


def test_a_target_is_written_with_its_units_or_without_them(
    run: Callable, made: Callable[..., Path], calls: Path, tmp_path: Path, measured: dict[str, list[Choice]]
) -> None:
    half = Place(H200.target, 66)
    path = made({H200: [norm()], half: [norm()]})

    def judged(*targets: str) -> Any:
        words = [word for target in targets for word in ("--target", target)]
        return run("plan", "check", str(path), *words, "--json").json

    assert judged("nvidia:sm_90")["targets"] == judged("h200")["targets"] == [str(H200), str(half)][::-1]
    assert judged("nvidia:sm_90/132")["targets"] == judged("H100/132")["targets"] == [str(H200)]
    told = run("plan", "check", str(path), "--target", "nvidia:sm_90/144").err
    assert f"plan.yaml has no part for nvidia:sm_90/144; its parts: {half}, {H200}" in told
    several = run("plan", "lock", str(path), "--calls", str(calls), "--target", "nvidia:sm_90")
    assert several.status == 2
    assert f"{path}, or this machine, has {half} and {H200}; add the units, such as {half}" in several.err
    none = run("plan", "lock", str(path), "--calls", str(calls), "--target", "amd:gfx942")
    assert f"--target 'amd:gfx942': {path}, or this machine, has no part for it; add" in none.err
    assert "as amd:gfx942/UNITS" in none.err
    one = made({H200: [norm()]}, "one.yaml")
    locked = run("plan", "lock", str(one), "--calls", str(calls), "--target", "nvidia:sm_90", "--json")
    assert locked.status == 0, locked.err
    assert {added["target"] for added in locked.json["added"]} == {str(H200)}
    here_alone = tmp_path / "here.yaml"
    assert run("plan", "export", "-o", str(here_alone), "--target", here().target).status == 0
    assert list(read_form(here_alone).parts) == [here()]


def test_a_target_without_units_is_exported_for_each_kind_of_device_that_was_measured(
    run: Callable, tmp_path: Path, measured: dict[str, list[Choice]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("nvidia.sm_90-132", "nvidia.sm_90-66", "amd.gfx942-304"):
        (tmp_path / "store" / name).mkdir(parents=True)
    monkeypatch.setenv("PORTAKERNEL_TUNING_DIR", str(tmp_path / "store"))
    path = tmp_path / "plan.yaml"
    assert run("plan", "export", "-o", str(path), "--target", "nvidia:sm_90").status == 0
    assert [str(place) for place in read_form(path).parts] == ["nvidia:sm_90/66", "nvidia:sm_90/132"]


def test_a_regime_of_graphs_is_explained_where_there_are_none(
    run: Callable, tmp_path: Path, measured: dict[str, list[Choice]]
) -> None:
    words = ["plan", "export", "-o", str(tmp_path / "plan.yaml"), "--target", str(here()), "--target", str(H200)]
    told = f"{here()} has no graphs, which graph/cold would time: eager/cold is what counts there\n"
    assert told in (out := run(*words, "--regime", "graph/cold").out)
    assert f"{H200} has no graphs" not in out
    assert "has no graphs" not in run(*words).out
    found = run(*words, "--regime", "graph/warm", "--json").json
    assert found["regimes"] == {str(here()): "eager/warm", str(H200): "graph/warm"}


def test_without_a_regime_the_one_that_decides_here_is_exported(
    run: Callable, tmp_path: Path, measured: dict[str, list[Choice]], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["plan", "export", "-o", str(tmp_path / "plan.yaml"), "--target", str(H200)]
    monkeypatch.setenv("PORTAKERNEL_TUNING", "eager/warm")
    assert run(*words, "--json").json["regimes"] == {str(H200): "eager/warm"}
    assert run(*words, "--regime", "graph/cold", "--json").json["regimes"] == {str(H200): "graph/cold"}
    monkeypatch.setenv("PORTAKERNEL_TUNING", "off")
    refused = run(*words)
    assert (refused.status, refused.err) == (
        2,
        (
            "portakernel: plan export: PORTAKERNEL_TUNING is off, and nothing that was measured decides; give --regime"
            " to say whose times the plan takes, or unset it\n"
        ),
    )
    assert run(*words, "--regime", "graph/warm").status == 0


@pytest.mark.parametrize(
    ("variable", "target", "regime"),
    [
        ("graph/cold", None, "eager/cold"),
        ("off", None, "eager/cold"),
        ("graph/warm", None, "eager/warm"),
        ("graph/warm", str(H200), "graph/warm"),
    ],
)
def test_a_plan_that_begins_locked_names_the_regime_of_its_devices(
    run: Callable, calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, target: str, regime: str
) -> None:
    monkeypatch.setenv("PORTAKERNEL_TUNING", variable)
    path = tmp_path / "plan.yaml"
    words = ["--target", target] if target else []
    assert run("plan", "lock", str(path), "--calls", str(calls), *words).status == 0
    assert read_form(path).regime == regime
    # one that is there keeps its own
    monkeypatch.setenv("PORTAKERNEL_TUNING", "eager/warm")
    assert run("plan", "lock", str(path), "--calls", str(calls), *words).status == 0
    assert read_form(path).regime == regime


def test_a_digest_that_cannot_be_one_is_told(run: Callable, made: Callable[..., Path]) -> None:
    told = run("plan", "check", str(made({H200: [norm()]})), "--digest", "sha256:12")
    assert told.status == 2
    assert "--digest 'sha256:12' is no digest; one is written as sha256:, with 64 hex digits" in told.err


def test_sizes_whose_kernel_differs_are_told(run: Callable, made: Callable[..., Path]) -> None:
    other = Choice("inductor.rms_norm", kind("rms_norm"), {"M": (100, 300), "N": (1, 9)}, "", "3 µs")
    old = made({H200: [norm(M=(1, 200), N=(1, 9))]}, "old.yaml")
    new = made({H200: [norm(M=(1, 99), N=(1, 9)), other]}, "new.yaml")
    ran = run("plan", "diff", str(old), str(new), "--json")
    assert ran.status == 1
    assert ran.json["choices_differ"] is True
    assert ran.json["changed"] == [
        {
            "target": str(H200),
            "op": "rms_norm",
            "call": {"dtype": "bfloat16", "M": [100, 200], "N": [1, 9]},
            "old": {"kernel": "triton.rms_norm", "comment": "4.4 µs"},
            "new": {"kernel": "inductor.rms_norm", "comment": "3 µs"},
        },
        {
            "target": str(H200),
            "op": "rms_norm",
            "call": {"dtype": "bfloat16", "M": [201, 300], "N": [1, 9]},
            "old": None,
            "new": {"kernel": "inductor.rms_norm", "comment": "3 µs"},
        },
    ]
    text = run("plan", "diff", str(old), str(new)).out
    assert "dtype: bfloat16, M: 100..200, N: 1..9" in text
    assert "triton.rms_norm (4.4 µs)" in text
    one = "1 kind of calls and sizes has"
    assert text.endswith(f"old.yaml and new.yaml: {one} another kernel; {one} a kernel that had none\n")
    back = run("plan", "diff", str(new), str(old)).out
    assert back.endswith(f"new.yaml and old.yaml: {one} another kernel; {one} no kernel any more\n")


def test_intervals_cut_otherwise_are_the_same_decisions(run: Callable, made: Callable[..., Path]) -> None:
    old = made({H200: [norm(M=(1, 200))]}, "old.yaml")
    new = made({H200: [norm(M=(1, 99)), norm(M=(100, 200))]}, "new.yaml")
    ran = run("plan", "diff", str(old), str(new))
    assert (ran.status, ran.out) == (0, "old.yaml and new.yaml: the same, 2 entries\n")


def test_another_lock_or_source_differs_too(run: Callable, made: Callable[..., Path]) -> None:
    old = made({H200: [norm()]})
    text = old.read_text(encoding="utf-8")
    text = text[: text.index("digest:")]
    new = old.with_name("new.yaml")
    new.write_text(text.replace("lock: listed", "lock: everything"), encoding="utf-8")
    assert "lock: listed before, everything now" in run("plan", "diff", str(old), str(new)).out
    source = read_form(old).pins["triton.rms_norm"].source
    new.write_text(text.replace(source, "0123456789abcdef"), encoding="utf-8")
    ran = run("plan", "diff", str(old), str(new), "--json")
    assert ran.json["sources"] == [{"kernel": "triton.rms_norm", "old": source, "new": "0123456789abcdef"}]
    assert (ran.status, ran.json["choices_differ"]) == (1, False)
    new.write_text(new.read_text(encoding="utf-8").replace("lock: listed", "lock: everything"), encoding="utf-8")
    away = old.parent / "away" / old.name
    away.parent.mkdir()
    new.rename(away)
    told = run("plan", "diff", str(old), str(away)).out
    assert told.endswith(f"{old} and {away}: 1 kernel has another source; the lock is another one\n")


# --- lock ------------------------------------------------------------------------------------------------------------


def test_every_call_is_covered_once_it_is_locked(run: Callable, calls: Path, made: Callable[..., Path]) -> None:
    listed = norm(M=(1, 100))
    path = made({H200: [listed]})
    ran = run("plan", "lock", str(path), "--calls", str(calls), "--target", str(H200), "--json")
    assert ran.status == 0, ran.out
    assert (ran.json["kept"], ran.json["unserved"]) == (1, [])
    # the calls of rms_norm are covered; of a call that names its kernel nothing is asked
    assert [(one["op"], one["dims"]) for one in ran.json["added"]] == [("softmax", {"M": 64, "N": 100})] * 2
    plan = read_form(path)
    assert (plan.lock, plan.digest) == ("everything", ran.json["digest"])
    found = plan.choices("rms_norm", H200).all
    assert [(choice.kernel, choice.why) for choice in found] == [("triton.rms_norm", "4.4 µs")]
    assert sorted(choice.kind.phase for choice in plan.choices("softmax", H200).all) == ["backward", "training"]
    assert run("plan", "check", str(path), "--target", "all").status == 0
    again = run("plan", "lock", str(path), "--calls", str(calls), "--target", str(H200), "--json").json
    assert (again["added"], again["digest"]) == ([], plan.digest)


def test_a_plan_for_this_machine_can_begin_with_its_workload(run: Callable, calls: Path, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    ran = run("plan", "lock", str(path), "--calls", str(calls))
    assert ran.status == 0, ran.err
    assert f"{path}: 0 entries kept, 3 added; lock: everything\n" in ran.out
    assert [str(place) for place in read_form(path).parts] == [str(here())]


def test_calls_that_are_locked_are_told_apart(run: Callable, tmp_path: Path) -> None:
    calls = tmp_path / "calls.yaml"
    calls.write_text(
        "calls:\n"
        "  - {op: softmax, dtype: float16, shape: {x: [64, 100]}, training: true}\n"
        "  - {op: rms_norm, dtype: {x: bfloat16, weight: float32}, shape: {x: [8, 64], weight: [64]},"
        " parameters: {weight_offset: 1.0}}\n",
        encoding="utf-8",
    )
    words = ["plan", "lock", str(tmp_path / "plan.yaml"), "--calls", str(calls), "--target", str(H200)]
    rows = [re.split(" {2,}", line.strip()) for line in run(*words).out.splitlines()]
    assert rows[0] == ["target", "op", "phase", "dtype", "sizes", "kernel"]
    assert [row[1:5] for row in rows[1:4]] == [
        ["softmax", "training", "float16", "M=64, N=100"],
        ["softmax", "backward", "float16", "M=64, N=100"],
        ["rms_norm", "inference", "x bfloat16, weight float32", "M=8, N=64, weight_offset=1.0"],
    ]
    Path(words[2]).unlink()
    norm = run(*words, "--json").json["added"][2]
    assert (norm["phase"], norm["dtypes"], norm["features"]) == (
        "inference",
        {"x": "bfloat16", "weight": "float32"},
        {"weight_offset": 1.0},
    )


def test_what_is_locked_is_accepted_in_float64_too(
    run: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, path = tmp_path / "calls.yaml", tmp_path / "plan.yaml"
    calls.write_text(
        "calls:\n"
        "  - {op: rms_norm, dtype: float64, shape: {x: [64, 4096], weight: [4096]}}\n"
        "  - {op: softmax, dtype: float64, shape: {x: [64, 100]}, training: true}\n",
        encoding="utf-8",
    )
    assert run("plan", "lock", str(path), "--calls", str(calls)).status == 0
    assert path.read_text(encoding="utf-8").count("{dtype: float64, ") == 3
    checked = run("plan", "check", str(path), "--json")
    assert (checked.status, checked.json["problems"], checked.json["refused"]) == (0, [], [])
    assert read_plan(path, dispatcher().registry).locked


def test_what_check_would_refuse_is_not_locked(
    run: Callable, tmp_path: Path, made: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, path = tmp_path / "calls.yaml", tmp_path / "plan.yaml"
    said = "dtypes: every call of embedding_bag has indices, offsets, and this entry not: it covers none"
    sums = "calls:\n  - {op: embedding_bag, dtype: DTYPE, shape: {weight: [64, 128], indices: [64], offsets: [8]}}\n"
    calls.write_text(sums.replace("DTYPE", "{weight: float32}"), encoding="utf-8")
    ran = run("plan", "lock", str(path), "--calls", str(calls), "--json")
    assert (ran.status, path.exists(), ran.json["lock"]) == (1, False, "listed")
    assert ran.json["refused"] == [f"embedding_bag on {here()}: {{dtype: float32, V: 64, N: 128, I: 64, B: 8}}: {said}"]
    calls.write_text(sums.replace("DTYPE", "{weight: float32, indices: int64, offsets: int64}"), encoding="utf-8")
    made({here(): [Choice("torch.softmax_cpu", kind("softmax", "float32"), {}, "")]})
    before = path.read_text(encoding="utf-8")
    monkeypatch.setenv("PORTAKERNEL_DENY", "torch.softmax_cpu")
    monkeypatch.setattr(runtime, "_dispatcher", functools.cache(Dispatcher))
    refused = run("plan", "lock", str(path), "--calls", str(calls))
    assert (refused.status, path.read_text(encoding="utf-8")) == (1, before)
    assert "softmax_cpu cannot serve it: denied by PORTAKERNEL_DENY" in " ".join(refused.out.split())
    assert refused.out.endswith("`plan check` would refuse 1 of its entries; nothing is written\n")


def test_who_is_denied_where_a_plan_is_locked_is_said(
    run: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PORTAKERNEL_DENY", "torch")
    calls, path = tmp_path / "calls.yaml", tmp_path / "plan.yaml"
    calls.write_text("calls:\n  - {op: softmax, dtype: float32, shape: {x: [4, 64]}}\n", encoding="utf-8")
    told = "softmax: reference.softmax is locked; torch.softmax_cpu would go first, but for: denied by PORTAKERNEL_DENY"
    assert run("plan", "lock", str(path), "--calls", str(calls)).out.splitlines()[0] == told
    path.unlink()
    assert run("plan", "lock", str(path), "--calls", str(calls), "--json").json["denied"] == [told]
    path.unlink()
    monkeypatch.delenv("PORTAKERNEL_DENY")
    monkeypatch.setattr(runtime, "_dispatcher", functools.cache(Dispatcher))
    assert run("plan", "lock", str(path), "--calls", str(calls), "--json").json["denied"] == []


def test_what_a_plan_was_made_with_stays_when_it_is_locked(
    run: Callable, calls: Path, tmp_path: Path, measured: dict[str, list[Choice]]
) -> None:
    path = tmp_path / "plan.yaml"
    measured["softmax"] = [Choice("reference.softmax", kind("softmax", "float32"), {}, "")]
    run("plan", "export", "-o", str(path))
    exported = path.read_text(encoding="utf-8").replace('torch: "', 'torch: "0.')
    path.write_text(exported, encoding="utf-8")
    assert run("plan", "lock", str(path), "--calls", str(calls)).status == 0
    assert read_form(path).made_with[here()].torch.startswith("0.")
    other = tmp_path / "other.yaml"
    assert run("plan", "lock", str(other), "--calls", str(calls)).status == 0
    assert read_form(other).made_with[here()].torch


def test_layouts_that_are_locked_are_told(run: Callable, tmp_path: Path) -> None:
    calls = tmp_path / "calls.yaml"
    calls.write_text(
        "calls:\n"
        "  - {op: rms_norm, dtype: bfloat16, shape: {x: [64, 4096], weight: [4096]}, strides: {x: [8194, 2]}}\n",
        encoding="utf-8",
    )
    path = tmp_path / "plan.yaml"
    ran = run("plan", "lock", str(path), "--calls", str(calls), "--target", str(H200), "--json")
    ((_, _, entry),) = read_form(path).entries()
    assert entry.layout
    assert ran.json["added"][0]["layout"] == list(entry.layout)


def test_a_part_for_other_units_is_judged_as_those_do_who_load_it(run: Callable, made: Callable[..., Path]) -> None:
    other = Place(here().target, here().units + 1)
    path = made({here(): [], other: [Choice("torch.softmax_cpu", kind("softmax", "float32"), {}, "")]})
    text = path.read_text(encoding="utf-8")
    path.write_text(text[: text.index("digest:")].replace("softmax_cpu", "softmax_cqu"), encoding="utf-8")
    with pytest.raises(PlanError, match="no kernel here is called that"):
        read_plan(path, dispatcher().registry)
    checked = run("plan", "check", str(path), "--json")
    assert (checked.status, "no kernel here is called that" in str(checked.json["problems"])) == (1, True)


def test_a_call_without_a_kernel_locks_nothing(
    run: Callable, calls: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PORTAKERNEL_REFERENCE", "forbid")
    monkeypatch.setenv("PORTAKERNEL_DENY", "triton,torch,inductor,liger,quack,hip,conch,flashinfer,cutlass_dsl,cutlass")
    monkeypatch.setattr("portakernel.runtime._dispatcher", functools.cache(type(dispatcher())))
    path = tmp_path / "plan.yaml"
    ran = run("plan", "lock", str(path), "--calls", str(calls))
    assert ran.status == 1
    assert ran.out.endswith("calls have no kernel; nothing is written\n")
    assert not path.exists()


def test_a_plan_that_is_refused_is_not_locked(run: Callable, calls: Path, made: Callable[..., Path]) -> None:
    path = made({here(): [Choice("reference.softmax", kind("softmax", "float32"), {}, "")]})
    text = path.read_text(encoding="utf-8").replace("reference.softmax", "reference.softmx")
    path.write_text(text[: text.index("digest:")], encoding="utf-8")
    ran = run("plan", "lock", str(path), "--calls", str(calls))
    assert (ran.status, "no kernel here is called that" in ran.err) == (2, True)


def test_its_commands_are_told(run: Callable) -> None:
    assert "Missing command" in run("plan").err
    ran = run("plan", "--help")
    assert all(f"\n  {name} " in ran.out for name in ("export", "check", "diff", "lock"))
    twice = run("plan", "check", "p.yaml", "--digest", "a", "--digest", "b")
    assert "--digest is given 2 times and takes one value" in twice.err


@pytest.mark.parametrize("lock", ["listed", "everything"])
def test_a_plan_for_as_many_units_as_are_not_here_is_not_followed_here(
    run: Callable, made: Callable[..., Path], lock: str
) -> None:
    place = here()
    other = Place(place.target, place.units + 1)
    path = made({other: [Choice("torch.softmax_cpu", kind("softmax", "float32"), {}, "", "")]})
    text = path.read_text(encoding="utf-8").replace("lock: listed", f"lock: {lock}")
    path.write_text("".join(f"{line}\n" for line in text.splitlines() if not line.startswith("digest")))
    ran = run("plan", "check", str(path), "--json")
    told = " ".join([*ran.json["problems"], *ran.json["notes"]])
    assert f"it has no part for {place}, this machine, but for {other}" in told
    assert ran.status == (1 if lock == "everything" else 0)


def test_units_say_which_part_of_a_plan_and_which_measurements_are_meant(
    run: Callable, made: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, asked, store = Place(H200.target, 66), kind("softmax", "float16"), tmp_path / "store"
    parts = {
        place: [Choice(name, asked, {}, "")] for place, name in ((H200, "torch.softmax"), (other, "triton.softmax"))
    }
    known = contract_digest(contract("softmax"))
    with Writer(folder_of(store, *other), "softmax") as writer:
        key = Key(asked, *other, Regime.GRAPH_COLD, {"M": 8, "N": 64})
        writer.write(Record(key, known, {}, "2026-11-27T00:00:00Z", busy=True))
    monkeypatch.setenv("PORTAKERNEL_TUNING_DIR", str(store))
    monkeypatch.setattr(runtime, "_dispatcher", functools.cache(Dispatcher))
    words = ["explain", "softmax", "--dtype", "float16", "--shape", "x=8x64", "--json", "--target"]

    def notes(units: str) -> str:
        return "; ".join(run(*words, f"{H200.target}{units}").json["notes"])

    assert notes("/66") == "measured, and not used: others used the device while it was measured"
    assert notes("/65") == "measured on nvidia:sm_90 with 66 units, not 65: not used"
    assert notes("").startswith("measured on such devices with 66 and 132 units, which may decide there")
    monkeypatch.setenv("PORTAKERNEL_PLAN", str(made(parts)))
    monkeypatch.setattr(runtime, "_dispatcher", functools.cache(Dispatcher))
    found = {units: run(*words, f"{H200.target}/{units}").json["chosen"] for units in (132, 66)}
    assert found == {132: "torch.softmax", 66: "triton.softmax"}
    assert run(*words[:2], "--target", "h200/66").out.startswith(
        "h200 is nvidia:sm_90.\nsoftmax on nvidia:sm_90, Hopper"
    )
    assert "found 'x' for units" in run(*words[:2], "--target", f"{H200.target}/x").err
    assert "--target h200/66 is about one call" in run("explain", "--all", "--target", "h200/66").err


def test_a_plan_in_force_that_is_refused_is_judged_all_the_same(
    run: Callable, made: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = made({here(): [Choice("torch.softmax_cpu", kind("softmax", "float32"), {}, "", "")]})
    path.write_text(path.read_text(encoding="utf-8").replace("source: ", "source: 0x", 1), encoding="utf-8")
    monkeypatch.setenv("PORTAKERNEL_PLAN", str(path))
    monkeypatch.setattr(runtime, "_dispatcher", functools.cache(Dispatcher))
    ran = run("plan", "check", str(path), "--json")
    assert ran.status == 1
    assert ran.json["problems"]
