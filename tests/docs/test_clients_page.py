"""docs/clients.md: each planted fault has a test that is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/clients.md").read_text(encoding="utf-8")
ROWS = [row for row in PAGE.partition("| fault | what notices it | test |")[2].splitlines() if row.startswith("| ")]


def test_all_twelve_faults_are_listed() -> None:
    assert len(ROWS) == 12


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_a_fault_has_a_test_that_is_there(row: str) -> None:
    named = re.findall(r"`(tests/[^:`]+)::(\w+)`", row)
    assert named
    for file, test in named:
        assert re.search(rf"^(def|class) {test}\b", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), test


@pytest.mark.parametrize("client", ["vllm", "sglang", "diffusers"])
def test_each_client_has_its_pinned_versions_with_hashes_and_its_tests(client: str) -> None:
    pins = (ROOT / f"clients/{client}.txt").read_text(encoding="utf-8")
    wanted = re.findall(r"^([A-Za-z0-9_.-]+)==\S+", pins, re.MULTILINE)
    assert len(wanted) > 20
    assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}", pins)) >= len(wanted)
    assert list((ROOT / "tests/clients" / client).glob("test_*.py"))
