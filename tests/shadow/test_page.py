"""What docs/shadow.md shows is what happens."""

from __future__ import annotations

import re
from pathlib import Path

import portakernel
from portakernel.deciding.policy_file import load_policy_file
from portakernel.deciding.shadow_wishes import ShadowWishes
from portakernel.runtime import dispatcher
from portakernel.shadow import process
from portakernel.shadow.counts import SKIPS
from portakernel.shadow.evidence import MOST_FILES

PAGE = (Path(__file__).parents[2] / "docs" / "shadow.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_defaults_are_those_shown(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(block("yaml"), encoding="utf-8")
    wishes = ShadowWishes()
    shown = load_policy_file(file, dispatcher().registry).shadow
    assert shown == ShadowWishes(
        wishes.every_s, wishes.bytes, wishes.share, "demote", "/var/tmp/wrong", "policy.yaml:3"
    )  # fmt: skip
    assert (wishes.on_mismatch, wishes.folder) == ("report", "")


def test_the_python_shown_runs(monkeypatch) -> None:
    made = process._Process()
    monkeypatch.setattr(process, "_process", made)
    try:
        exec(compile(block("python"), "docs/shadow.md", "exec"), {})
    finally:
        made.stop()
    assert portakernel.shadow.report().state == "shadow verification is off"


def test_every_reason_for_passing_over_is_named() -> None:
    assert set(re.findall(r"`skipped: (\w+)`", PAGE)) == set(SKIPS)


def test_the_number_of_files_is_that_of_the_code() -> None:
    assert f"a folder takes {MOST_FILES} files" in PAGE
