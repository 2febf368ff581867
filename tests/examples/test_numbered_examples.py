"""The numbered scripts of examples/ are short, stand in the README in order, and print what their first lines say."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cxx import HAS_CXX

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted((ROOT / "examples").glob("[0-9][0-9]_*.py"))
README = (ROOT / "README.md").read_text(encoding="utf-8")
# torch says it of itself when it first compiles, and what `portakernel` starts inherits the filters
WARNINGS = "error,ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"

pytestmark = pytest.mark.skipif(not SCRIPTS, reason="the examples are not part of this distribution")
scripts = pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)


def run(script: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """The script in a process of its own, as a reader runs it, on the CPU."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PORTAKERNEL_")}
    ours = {"CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": WARNINGS, "COLUMNS": "160", "TMPDIR": str(folder)}
    command = [sys.executable, str(script)]
    return subprocess.run(command, cwd=folder, env=kept | ours, capture_output=True, text=True, check=False)


def promised(script: Path) -> str:
    """What the script's docstring says that it prints."""
    shown = re.search(
        r"^.*Prints, on .*::\n\n((?:    .*\n?)+)", ast.get_docstring(ast.parse(script.read_text())) or "", re.M
    )
    assert shown is not None, (
        f"{script.name}: its docstring ends with what it prints, indented behind 'Prints, on a CPU::'"
    )
    return shown[1]


def differences(shown: str, printed: str) -> list[str]:
    """Where the output leaves what is promised; ``...`` stands for any text, and alone on a line for any lines."""
    lines, at, skipping = printed.splitlines(), 0, False
    for promise in (line.strip() for line in shown.splitlines()):
        if promise == "...":
            skipping = True
            continue
        pattern = ".+".join(map(re.escape, promise.split("...")))
        places = range(at, len(lines)) if skipping else range(at, min(at + 1, len(lines)))
        place = next((place for place in places if re.fullmatch(pattern, lines[place].strip())), None)
        if place is None:
            return [f"promised: {promise}", f"printed:  {lines[at] if at < len(lines) else 'nothing more'}"]
        at, skipping = place + 1, False
    return [] if skipping or at == len(lines) else [f"printed beyond what is promised: {lines[at]}"]


@scripts
def test_a_script_prints_what_it_promises(script: Path, tmp_path: Path) -> None:
    text = script.read_text(encoding="utf-8")
    if "transformers" in text:
        pytest.importorskip("transformers")
    if "torch.compile" in text and not HAS_CXX:
        pytest.skip("lacks a C++ compiler, which Inductor needs for the CPU")
    ran = run(script, tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert differences(promised(script), ran.stdout) == []
    assert [left.name for left in tmp_path.iterdir() if not left.name.startswith("torchinductor")] == []


@scripts
def test_a_script_is_at_most_60_lines_long(script: Path) -> None:
    assert len(script.read_text(encoding="utf-8").splitlines()) <= 60


def test_scripts_are_numbered_and_the_readme_links_them_in_order() -> None:
    assert [int(script.name[:2]) for script in SCRIPTS] == list(range(1, len(SCRIPTS) + 1))
    assert re.findall(r"\]\(examples/(\d\d_\w+\.py)\)", README) == [script.name for script in SCRIPTS]


@pytest.mark.parametrize(
    ("name", "old", "new", "promise"),
    [
        (
            "08_paged_generation.py",
            "out = ops.paged_attention(q, cache[:, 0]",
            "out = ops.paged_attention(q, cache[:, 0].flip(2)",
            "request 0: 7 + 6 tokens, as without a cache: True",
        ),
        (
            "05_plugin_in_one_file.py",
            "limits: {N: {max: 1024}}",
            "limits: {N: {max: 8192}}",
            "rows of 4096: torch.rms_norm_cpu; tiny.rms_norm needs N <= 1024; this is 4096",
        ),
        (
            "04_bound_handle_in_a_graph.py",
            "gate(norm(x, weight))",
            "gate(x)",
            "the step of handles equals the step of ops: True",
        ),
    ],
    ids=["heads mixed up", "a wider claim", "a step without its norm"],
)
def test_a_script_that_does_something_else_is_noticed(
    name: str, old: str, new: str, promise: str, tmp_path: Path
) -> None:
    text = (ROOT / "examples" / name).read_text(encoding="utf-8")
    assert text.count(old) == 1
    changed = tmp_path / name
    changed.write_text(text.replace(old, new), encoding="utf-8")
    ran = run(changed, tmp_path)
    if name.startswith("05"):  # its error is the kernel's claim, which a row of 4096 now meets
        assert ran.returncode == 1
        assert "IndexError" in ran.stderr
    else:
        assert differences(promised(changed), ran.stdout)[0] == f"promised: {promise}"


def test_output_is_held_line_by_line() -> None:
    shown = "    one ... three\n    ...\n    last\n"
    assert differences(shown, "one two three\nmore\nlast\n") == []
    assert differences(shown, "one two\nlast\n") == ["promised: one ... three", "printed:  one two"]
    assert differences(shown, "one two three\nmore\n") == ["promised: last", "printed:  more"]
    assert differences("    one\n", "one\ntwo\n") == ["printed beyond what is promised: two"]
