"""The policy file as commands show it: where a decision comes from, and a wrong file without a traceback."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

# As in a process of its own, where a warning is no error.
SHOWN = pytest.mark.filterwarnings("always::portakernel.errors.ConfigWarning")


@pytest.fixture
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Writes a policy file and puts it in force."""

    def write(text: str) -> Path:
        file = tmp_path / "policy.yaml"
        file.write_text(f"schema_version: 1\n{text}", encoding="utf-8")
        monkeypatch.setenv("PORTAKERNEL_POLICY", str(file))
        return file

    return write


def test_explain_names_the_line_that_decided(run: Callable, policy: Callable) -> None:
    policy("prefer: torch\nops:\n  add:\n    deny:\n      - triton\n    reference: forbid\n")
    ran = run("explain add --target nvidia:sm_90 --dtype float32")
    assert ran.status == 0
    assert "\ntorch.add serves it: policy.yaml:2 prefers it.\n" in ran.out
    for reason in ("denied by policy.yaml:6", "reference: forbid (policy.yaml:7)"):
        assert f"  denied_by_policy: {reason}  " in ran.out


def test_what_the_command_line_says_goes_before_the_file(run: Callable, policy: Callable) -> None:
    policy("use: torch\n")
    assert run("explain add --target nvidia:sm_90 --prefer triton --json").json["why"] == "command line prefers it"
    assert run("explain add --target nvidia:sm_90 --json").json["why"] == "policy.yaml:2 uses it"


def test_nothing_is_decided_under_a_wrong_file(run: Callable, policy: Callable) -> None:
    file = policy("refrence: forbid\nuse: tritn\n")
    message = (
        "PORTAKERNEL_POLICY: this policy file cannot be accepted:\n"
        f"{file}:2: refrence: unknown key; did you mean 'reference'?\n"
        f"{file}:3: use: unknown kernel or plugin 'tritn'; did you mean 'triton' or 'triton.add'?"
    )
    for line in ("explain add --target nvidia:sm_90", "list", "check --op add"):
        ran = run(line)
        assert (ran.status, ran.out, ran.err) == (2, "", f"portakernel: {message}\n")
    ran = run("explain add --target nvidia:sm_90 --json")
    assert ran.status == 2
    assert ran.json == {"error": {"type": "PolicyFileError", "message": message}}


def test_doctor_says_what_is_wrong_with_the_file_and_examines_the_rest(run: Callable, policy: Callable) -> None:
    file = policy("reference: never\n")
    ran = run("doctor --json")
    assert ran.status == 1
    assert ran.json["environment"]["set"] == {"PORTAKERNEL_POLICY": str(file)}
    assert ran.json["environment"]["error"] == (
        "PORTAKERNEL_POLICY: this policy file cannot be accepted:\n"
        f"{file}:2: reference: found 'never'; known: allow, forbid, warn"
    )
    assert [plugin["plugin"] for plugin in ran.json["plugins"]][:3] == ["conch", "cutlass", "cutlass_dsl"]


@SHOWN
def test_explain_says_on_stderr_which_preference_is_left_out_and_answers(run: Callable, policy: Callable) -> None:
    policy("prefer: [tritn, torch]\n")
    ran = run("explain add --target nvidia:sm_90 --json")
    assert (ran.status, ran.json["why"]) == (0, "policy.yaml:2 prefers it")
    said = "policy.yaml:2: prefer: unknown kernel or plugin 'tritn'; did you mean 'triton' or 'triton.add'?"
    advice = "The preference is left out: correct the name, or install what has it"
    assert ran.err == f"portakernel: ConfigWarning: {said} {advice}\n"


@pytest.mark.parametrize("option", ["use", "prefer", "deny"])
def test_a_name_on_the_command_line_that_nothing_has_is_a_question_without_an_answer(
    run: Callable, option: str
) -> None:
    ran = run(f"explain add --target nvidia:sm_90 --{option} tritn")
    said = f"command line: {option}: unknown kernel or plugin 'tritn'; did you mean 'triton' or 'triton.add'?"
    assert (ran.status, ran.err) == (2, f"portakernel: {said}\n")


@SHOWN
def test_doctor_tells_what_is_misspelt_from_what_is_meant_for_other_machines(
    run: Callable, policy: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = policy("prefer: gone\ndeny: [tritn, elsewhere]\nops:\n  ad: {deny: torch}\ntargets:\n  amd: {prefer: x}\n")
    monkeypatch.setenv("PORTAKERNEL_DISABLE", "nowhere")
    ran = run("doctor --json")
    said = "policy.yaml:5: ops.ad: unknown op 'ad'; did you mean 'add'? Its wishes are left out"
    others = "or leave it as it is if it is meant for other machines"
    assert ran.err == f"portakernel: ConfigWarning: {said}: correct it, {others}\n"
    found = ran.json["findings"]
    told = {
        f["what"]: (f["state"], f["action"]) for f in found if "policy.yaml" in f["what"] or "DISABLE:" in f["what"]
    }
    assert {re.sub(r"\d+ are", "# are", what): answer for what, answer in told.items()} == {
        f"policy file {file} is in force": ("healthy", None),
        f"PORTAKERNEL_POLICY={file} is in force": ("healthy", None),
        said: ("attention", f"correct it, {others}"),
        "policy.yaml:2: prefer: unknown kernel or plugin 'gone'; # are known, none of them close."
        " The preference is left out": ("attention", "correct the name, or install what has it"),
        "policy.yaml:3: deny: unknown kernel or plugin 'tritn'; did you mean 'triton' or 'triton.add'?": (
            "attention",
            f"correct the name, {others}",
        ),
        "policy.yaml:3: deny: unknown kernel or plugin 'elsewhere'; # are known, none of them close:"
        " nothing is to be done for it here": ("healthy", None),
        "PORTAKERNEL_DISABLE: unknown kernel, plugin or backend 'nowhere'; # are known, none of them close:"
        " nothing is to be done for it here": ("healthy", None),
    }


@pytest.mark.parametrize(
    ("section", "calls"),
    [
        ("  cpu: {use: nosuch}\n", "on cpu"),
        ("  cpu:\n    ops:\n      add: {use: nosuch}\n", "of add on cpu"),
    ],
)
def test_doctor_calls_a_policy_sick_under_which_calls_here_are_refused(
    run: Callable, policy: Callable, section: str, calls: str
) -> None:
    policy(f"targets:\n{section}  amd: {{use: gone}}\n")
    ran = run("doctor --json")
    (finding,) = [finding for finding in ran.json["findings"] if finding["state"] == "sick"]
    line = 2 + section.count("\n")
    known = r"unknown kernel or plugin 'nosuch'; \d+ are known, none of them close"
    assert re.fullmatch(rf"policy\.yaml:{line}: use: {known}\. Every call {calls} is refused", finding["what"])
    assert finding["action"] == "correct the name, or install what has it"
    assert (ran.status, ran.json["ok"]) == (1, False)


@pytest.mark.parametrize(
    ("environment", "ruled"),
    [
        ({"DENY": "liger"}, "PORTAKERNEL_DENY denies it"),
        ({"DISABLE": "liger"}, "PORTAKERNEL_DISABLE switches it off"),
        ({"PLUGINS": "torch"}, "PORTAKERNEL_PLUGINS allows only torch"),
    ],
)
def test_doctor_tells_of_preferences_that_the_policy_itself_rules_out(
    run: Callable, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], ruled: str
) -> None:
    for name, value in ({"PREFER": "liger"} | environment).items():
        monkeypatch.setenv(f"PORTAKERNEL_{name}", value)
    found = [finding for finding in run("doctor --json").json["findings"] if "cannot go first" in finding["what"]]
    what = f"PORTAKERNEL_PREFER: 'liger' cannot go first: {ruled}. The preference is left out"
    assert found == [{"state": "attention", "what": what, "action": "take one of the two back", "details": []}]


def test_doctor_says_which_plugins_a_list_leaves_out(run: Callable, policy: Callable) -> None:
    policy("plugins: [torch]\n")
    whats = [finding["what"] for finding in run("doctor --json").json["findings"]]
    left_out = [what.split()[1] for what in whats if what.endswith(" is left out: policy.yaml:2 does not allow it")]
    assert {"triton", "hip", "liger"} <= set(left_out)
    assert "torch" not in left_out


def test_validate_checks_each_file_in_force_and_the_names_in_variables(
    run: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, host = tmp_path / "base.yaml", tmp_path / "host.yaml"
    base.write_text("schema_version: 1\nprefer: tritn\n", encoding="utf-8")
    host.write_text("schema_version: 1\ntargets:\n  amd: {deny: tritn}\n", encoding="utf-8")
    monkeypatch.setenv("PORTAKERNEL_POLICY", f"{base}{os.pathsep}{host}")
    for name in ("DENY", "DISABLE", "PLUGINS"):
        monkeypatch.setenv(f"PORTAKERNEL_{name}", "tritn")
    ran = run("validate --json")
    near = "'tritn'; did you mean 'triton'"
    assert ran.status == 1
    assert [
        (problem["file"], problem["line"], problem["key"], problem["text"].partition(" or 'triton.")[0].rstrip("?"))
        for problem in ran.json["problems"]
    ] == [
        (str(base), 2, "prefer", f"unknown kernel or plugin {near}"),
        (str(host), 3, "targets.amd.deny", f"unknown kernel or plugin {near}"),
        ("PORTAKERNEL_DENY", None, None, f"unknown kernel or plugin {near}"),
        ("PORTAKERNEL_PLUGINS", None, None, f"unknown plugin {near}"),
        ("PORTAKERNEL_DISABLE", None, None, f"unknown kernel, plugin or backend {near}"),
    ]
    assert [
        (checked["file"], checked["problems"]) for checked in ran.json["checked"] if checked["kind"] == "policy"
    ] == [
        (str(base), 1),
        (str(host), 1),
    ]
