"""What docs/policy.md shows is what happens."""

from __future__ import annotations

import functools
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import portakernel
from portakernel import runtime
from portakernel.cli import main
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.deciding.policy_document import PolicyDocument, Section

PAGE = (Path(__file__).parents[2] / "docs" / "policy.md").read_text(encoding="utf-8")
EXAMPLE, LISTED = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
(FLEET,) = re.findall(r"```console\n(\$ cat fleet\.yaml\n.*?)```", PAGE, re.DOTALL)
COMMANDS = re.findall(r"```console\n\$ portakernel (.*?)\n(.*?)```", PAGE, re.DOTALL)
REASONS = re.findall(r"^\| `(\w+)` on `(\S+)` \| `(\S+)` is (\w+) \| `(.*)` \|$", PAGE, re.MULTILINE)


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page's example, in force for a dispatcher of the test's own."""
    file = tmp_path / "policy.yaml"
    file.write_text(EXAMPLE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    for name in ("USE", "PREFER", "DENY", "REQUIRE", "REFERENCE", "PLUGINS", "DISABLE"):
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
    assert [file.named_by for file in runtime.dispatcher().process.files] == ["load_policy"]
    exec(compile(f"import portakernel\n{nothing}", "policy.md", "exec"), {})
    assert runtime.dispatcher().process.files == ()


def test_the_list_shown_leaves_the_others_out(example: Path) -> None:
    example.write_text(LISTED, encoding="utf-8")
    decision = portakernel.explain("rms_norm", target="nvidia:sm_90", dtype="bfloat16")
    codes = {c.kernel.plugin: {str(r.code) for r in c.rejections} for c in decision.candidates}
    assert {plugin for plugin, reasons in codes.items() if "not_allowed" in reasons} == codes.keys() - {
        *("torch", "triton", "reference"),
    }


def test_a_policy_that_names_what_is_absent_denied_and_broken_serves_and_warns_as_shown(
    tmp_path: Path, forked_interpreter: Callable[..., Path], imported_first: tuple[str, ...]
) -> None:
    """The console block, line by line; how many names are known depends on what is installed beside."""
    lines = FLEET.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("$ export"))
    (tmp_path / "fleet.yaml").write_text("\n".join(lines[1:start]) + "\n", encoding="utf-8")
    info = tmp_path / "site" / "shaky_kernels-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shaky-kernels\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[portakernel]\nshaky = shaky_kernels\n", encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PORTAKERNEL_")}
    python = f'python() {{ "{forked_interpreter(imported_first)}" "$@"; }}'
    script = "\n".join([python, *(line[2:] for line in lines[start : start + 2])])
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env={**kept, "PYTHONPATH": str(tmp_path / "site")}, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0
    assert re.sub(r"\d+ are known", "# are known", done.stdout).splitlines() == [
        re.sub(r"\d+ are known", "# are known", line) for line in lines[start + 2 :]
    ]


def test_there_are_reasons_to_hold_the_page_to() -> None:
    assert len(REASONS) == PAGE.count(" is chosen | ") + PAGE.count(" is rejected | ") > 0


def test_every_key_is_in_the_table() -> None:
    listed = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert set(listed) == PolicyDocument.model_fields.keys() - {"schema_version"}
    assert Section.model_fields.keys() <= set(listed)
