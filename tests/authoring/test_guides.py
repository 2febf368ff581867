"""plugins/README.md and backends/README.md: each command is run as written, in order, and prints what is shown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDES = ("plugins/README.md", "backends/README.md")


@dataclass(frozen=True)
class Step:
    """A command, and the lines that are shown of its output; ``...`` stands for any."""

    command: str
    shown: tuple[str, ...]


def steps(text: str) -> Iterator[Step]:
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            first, *rest = part.splitlines()
            more = [line[1:].removeprefix(" ") for line in rest if re.match(r">( |$)", line)]
            yield Step("\n".join([first, *more]), tuple(rest[len(more) :]))


def without_what_varies(line: str) -> str:
    """Widths of columns and numbers of test runs are the machine's; the rest is what the guide says."""
    if re.search(r"passed|seed|drawn requests|^  (demo_\w+\.|every|right)", line):
        line = re.sub(r"\d[\d.]*s?", "#", line)
    return re.sub(r" {2,}", "  ", line).rstrip()


def differences(step: Step, output: str) -> list[str]:
    """What is shown and was not printed there; empty where all was."""
    printed = [line for line in map(without_what_varies, output.splitlines()) if line]
    shown = [line for line in map(without_what_varies, step.shown) if line]
    at, skipping = 0, False
    for line in shown:
        if line == "...":
            skipping = True
            continue
        places = [i for i in range(at, len(printed)) if printed[i] == line] if skipping else [at]
        if not places or places[0] >= len(printed) or printed[places[0]] != line:
            return [f"$ {step.command}", f"is shown: {line}", f"and prints:\n{output}"]
        at, skipping = places[0] + 1, False
    return [] if skipping or at == len(printed) else [f"$ {step.command}", f"prints more:\n{output}"]


@pytest.mark.turns(2)
@pytest.mark.parametrize("guide", GUIDES)
def test_every_command_prints_what_is_shown(shell, guide):
    folder, place = shell.folder, shell.folder.parent / "place"
    for step in steps((ROOT / guide).read_text(encoding="utf-8")):
        ran = shell.run(f"{step.command}\nstatus=$?; pwd >{place}; exit $status", folder)
        folder = Path(place.read_text(encoding="utf-8").strip())
        different = differences(step, ran.stdout)
        assert not different, "\n".join(different)
        if ran.returncode:  # validate, which is shown to find what is wrong
            assert any("problem" in line or line == "..." for line in step.shown), ran.stdout


@pytest.mark.parametrize("guide", GUIDES)
def test_steps_are_numbered_and_links_lead_somewhere(guide):
    text = (ROOT / guide).read_text(encoding="utf-8")
    numbers = [int(number) for number in re.findall(r"^## (\d+)\. ", text, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(list(steps(text))) > 10
    links = re.findall(r"\]\(([^)#:]+)\)", text)
    assert [link for link in links if not (ROOT / guide).parent.joinpath(link).exists()] == []


def test_a_guide_that_shows_something_else_is_noticed():
    step = Step("true", ("one 1", "...", "three 3", "5 passed in 3s"))
    assert differences(step, "one 1\ntwo\nthree 3\n7 passed in 1.2s\n") == []
    assert differences(step, "one 2\ntwo\nthree 3\n7 passed in 1.2s\n") != []
    assert differences(step, "one 1\ntwo\nthree 3\n7 failed in 1.2s\n") != []
    assert differences(step, "one 1\nthree 3\n7 passed in 1.2s\nmore\n") != []
