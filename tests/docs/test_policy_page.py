"""What docs/policy.md shows is what happens."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

import portakernel
from portakernel import runtime
from portakernel.cli import main
from portakernel.dispatch import Dispatcher
from portakernel.policy_file import PolicyDocument, Section

PAGE = (Path(__file__).parents[2] / "docs" / "policy.md").read_text(encoding="utf-8")
(EXAMPLE,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = re.findall(r"```console\n\$ portakernel (.*?)\n(.*?)```", PAGE, re.DOTALL)
REASONS = re.findall(r"^\| `(\w+)` on `(\S+)` \| `(\S+)` is (\w+) \| `(.*)` \|$", PAGE, re.MULTILINE)


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page's example, in force for a dispatcher of the test's own."""
    file = tmp_path / "policy.yaml"
    file.write_text(EXAMPLE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for name in ("USE", "PREFER", "DENY", "REFERENCE", "DISABLE"):
        monkeypatch.delenv(f"PORTAKERNEL_{name}", raising=False)
    monkeypatch.setenv("PORTAKERNEL_POLICY", "policy.yaml")
    monkeypatch.setattr(runtime, "_dispatcher", functools.cache(Dispatcher))
    return file


@pytest.mark.parametrize(("op", "target", "kernel", "status", "reason"), REASONS)
def test_the_reasons_are_those_of_the_decision(
    example: Path, op: str, target: str, kernel: str, status: str, reason: str
) -> None:
    decision = portakernel.explain(op, target=target, dtype="bfloat16")
    candidate = decision.candidate(kernel)
    assert candidate.status == status
    reasons = [decision.why] if status == "chosen" else [rejection.text for rejection in candidate.rejections]
    assert reason in reasons


def test_the_example_is_valid_and_the_misspelling_is_told_as_shown(
    example: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", "policy.yaml"]) == 0
    assert capsys.readouterr().out == "1 policy file: no problems\n"
    example.write_text(EXAMPLE.replace("prefer: triton ", "prefer: tritn "), encoding="utf-8")
    (shown,) = [shown for command, shown in COMMANDS if command == "validate policy.yaml"]
    assert main(["validate", "policy.yaml"]) == 1
    assert capsys.readouterr().out == shown


def test_the_python_shown_runs(example: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    loads, nothing = code.rstrip().rsplit("\n", 1)
    exec(compile(loads, "policy.md", "exec"), {})
    assert runtime.dispatcher().policy_file.named_by == "load_policy"
    exec(compile(f"import portakernel\n{nothing}", "policy.md", "exec"), {})
    assert runtime.dispatcher().policy_file is None


def test_there_are_reasons_to_hold_the_page_to() -> None:
    assert len(REASONS) == PAGE.count(" is chosen | ") + PAGE.count(" is rejected | ") > 0


def test_every_key_is_in_the_table() -> None:
    listed = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert set(listed) == PolicyDocument.model_fields.keys() - {"schema_version"}
    assert Section.model_fields.keys() <= set(listed)
