"""The policy file as commands show it: where a decision comes from, and a wrong file without a traceback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


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
    file = policy("refrence: forbid\nprefer: tritn\n")
    message = (
        "PORTAKERNEL_POLICY: this policy file cannot be accepted:\n"
        f"{file}:2: refrence: unknown key; did you mean 'reference'?\n"
        f"{file}:3: prefer: unknown kernel or plugin 'tritn'; did you mean 'triton' or 'triton.add'?"
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
