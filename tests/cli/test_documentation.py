"""docs/cli.md and the JSON that commands print have the same keys."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from portakernel.config import VARIABLES

pytestmark = pytest.mark.usefixtures("forked_observers", "small_model")

DOCUMENT = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
# Objects whose keys are names of arguments, dimensions, vendors, modules or variables.
OPEN = {"dtypes", "dims", "facts", "features", "formats", "targets", "requires", "set"}
OPEN |= {"call", "entries", "left_out", "by", "by_kernel", "shapes", "values", "versions", "clocks", "host"}


def _keys(data: Any) -> Iterator[str]:
    if isinstance(data, list):
        for item in data:
            yield from _keys(item)
    elif isinstance(data, dict):
        for key, value in data.items():
            yield key
            if key not in OPEN or isinstance(value, list):
                yield from _keys(value)


def _section(command: str) -> str:
    """What the document says of ``command``, and of ``explain``, whose form others contain."""
    sections = dict(zip(*[iter(re.split(r"^## (.+)\n", DOCUMENT, flags=re.MULTILINE)[1:])] * 2, strict=True))
    return sections[command] + sections["explain"]


@pytest.mark.turns(2)
@pytest.mark.parametrize(
    "line",
    [
        "list",
        "matrix",
        "doctor",
        "doctor --environment",
        "explain add --target cpu:x86_64",
        "explain --all --target cpu:x86_64",
        "diff {one} {two}",
        "new plugin documented --directory {folder}",
        "validate",
        "check --plugin torch --op add --budget 1s",
        "lint --kernel torch.add --kernel torch.rms_norm_cpu --seconds 1",
        "lint --kernel torch.add --mutate",
        "faults torch --op add --most 1 --budget 0.1s --seed 7",
        "compile --plugin triton --op add --target nvidia:sm_90",
        "plan check {plan}",
        "plan diff {plan} {none}",
        "plan lock {plan} --calls {calls}",
        "cache list",
        "report --calls {calls} --plan {plan}",
        "bench rms_norm softmax --device cpu --seconds 0 --quick",
        "bench rms_norm --device cpu --seconds 0 --launch",
        "demo {text} --steps 2",
    ],
)
def test_every_key_is_documented(run: Callable, tmp_path: Path, line: str) -> None:
    text = tmp_path / "text"
    text.write_text("words", encoding="utf-8")
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    for file, wish in ((one, ""), (two, "--deny triton")) if line.startswith("diff") else ():
        file.write_text(run(f"explain --all --target h100 {wish} --json").out, encoding="utf-8")
    plan, none, calls = tmp_path / "plan.yaml", tmp_path / "none.yaml", tmp_path / "calls.yaml"
    calls.write_text("calls: [{op: add, dtype: float32, shape: {x: [4], y: [4]}, device: cpu}]", encoding="utf-8")
    for file, targets in ((plan, "{'cpu:x86_64/2': {}}"), (none, "{}")) if "{plan}" in line else ():
        file.write_text(f"schema_version: 1\ntargets: {targets}\n", encoding="utf-8")
    places = {"text": text, "folder": tmp_path, "one": one, "two": two, "plan": plan, "none": none, "calls": calls}
    command, *arguments = line.format(**places).split()
    section = re.sub(r"```.*?```", "", _section(command), flags=re.DOTALL)
    written = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", section))))
    assert set(_keys(run(command, *arguments, "--json").json)) - written == set()


@pytest.mark.parametrize(
    "command",
    [
        "list",
        "matrix",
        "doctor",
        "explain",
        "diff",
        "new",
        "validate",
        "check",
        "lint",
        "faults",
        "compile",
        "bench",
        "report",
        "demo",
    ],
)
def test_every_option_is_documented(run: Callable, command: str) -> None:
    options = set(re.findall(r"--[a-z]+", run(command, "--help").out)) - {"--help", "--json"}
    assert options - set(re.findall(r"--[a-z]+", _section(command))) == set()


def test_the_table_of_variables_is_that_of_the_code() -> None:
    lines = ["| variable | what it does | accepts | who reads it, and when |", "|---|---|---|---|"]
    lines += [f"| `{v.name}` | {v.summary} | {v.accepts} | {v.read_by} |" for v in VARIABLES]
    assert "\n".join(lines) + "\n" in DOCUMENT
