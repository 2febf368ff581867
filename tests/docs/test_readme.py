"""What the README shows is what happens."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from portakernel.cli import main

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_quick_start_runs(capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(code.replace("4096, 8192", "16, 8192"), "README.md", "exec"), {})
    shown = capsys.readouterr().out
    assert shown.startswith("rms_norm on ")
    assert "Served(op='rms_norm'" in shown


@pytest.mark.filterwarnings("ignore::portakernel.errors.FallbackWarning")  # which kernels there are is not told here
def test_the_example_in_transformers_runs(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    _, code = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    shown = capsys.readouterr().out
    assert shown.startswith('attention         attn_implementation="portakernel", before: "sdpa"\n')
    assert re.search(r"^norm like Llama's \(rms_norm\) +\d+ calls +\d+ traces  served$", shown, re.MULTILINE)


def test_the_decision_is_the_one_that_explain_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    (command, shown) = re.findall(r"```console\n\$ portakernel (explain .*?)\n(.*?)```", README, re.DOTALL)[0]
    assert main(shlex.split(command)) == 0
    # of what ships here: the OpenCL example may be installed beside it
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.endswith(" opencl.rms_norm")]
    assert lines == shown.splitlines()


def test_the_demo_prints_what_is_shown(python: Callable[..., Any], imported_to_compile: tuple[str, ...]) -> None:
    # in a process of its own: the table holds every decision of the process
    command = ["-m", "portakernel", "demo", "--device", "cpu", "--steps", "10"]
    # without the COLUMNS that readline sets, which pytest loads
    variables = {name: value for name, value in os.environ.items() if name != "COLUMNS"} | {"OMP_NUM_THREADS": "1"}
    ran = python(*command, cwd=ROOT, env=variables, imports=imported_to_compile)
    assert ran.returncode == 0, ran.stderr
    printed = iter(list(map(_without_counts, ran.stdout.splitlines())))
    (shown,) = re.findall(r"```\n(A byte-level decoder.*?)```", README, re.DOTALL)
    # what it writes depends on every step, and what hardware it says is this machine's
    lines = [_without_counts(line) for line in shown.splitlines() if line not in ("", "...") and "|" not in line]
    assert [line for line in lines if line not in printed] == []  # each after the one before it


def _without_counts(line: str) -> str:
    """A line of the demo without what depends on the number of steps and on the machine's speed."""
    if re.fullmatch(r"(  training|  writing|)[\d. ]+", line):
        return re.sub(r"[\d.]+", "N", " ".join(line.split()))
    return re.sub(r"\d+ (calls *|steps|of all \d+ words)", r"N \1", re.sub(r"of all \d+", "of all N", line))


def test_every_link_to_a_file_leads_somewhere() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    code = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
    links = [
        (page, link)
        for page in pages
        for link in re.findall(r"\]\(([^)#:]+)\)", code.sub("", page.read_text(encoding="utf-8")))
    ]
    assert links
    assert [(page.name, link) for page, link in links if not (page.parent / link).exists()] == []


def test_the_manifest_of_the_guide_is_a_valid_one(tmp_path: Path) -> None:
    from portakernel.manifest.loading import load_manifest
    from portakernel.manifest.models import PluginManifest

    guide = (ROOT / "docs" / "writing-a-kernel.md").read_text(encoding="utf-8")
    manifest, *_ = re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL)
    path = tmp_path / "plugin.yaml"
    path.write_text(manifest, encoding="utf-8")
    assert load_manifest(PluginManifest, path, strict=True).manifest.plugin == "acme"
