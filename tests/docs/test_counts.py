"""The numbers that pages name are those of what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from portakernel_pages import generate

from portakernel.cli import COMMANDS

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"


def test_the_readme_counts_ops_and_kernels_right() -> None:
    assert README.read_text(encoding="utf-8") == generate.generated()[README], "README.md is stale: run `make generate`"


def test_a_number_that_is_wrong_is_mended_and_one_that_is_gone_is_missed() -> None:
    text = README.read_text(encoding="utf-8")
    wrong = re.sub(r"The \d+ ops carry", "The 7 ops carry", text)
    assert wrong != text
    assert generate._counted(wrong, generate.first_party()) == text
    with pytest.raises(
        ValueError, match=r"^README.md has 'The \{\} ops carry' 0 times; once is needed, for the number"
    ):
        generate._counted(text.replace(" ops carry", " operators carry"), generate.first_party())


def test_the_readme_counts_the_examples_ops_right() -> None:
    manifest = ROOT / "examples/opencl_backend/src/opencl_backend/plugin.yaml"
    ops = {kernel["op"] for kernel in yaml.safe_load(manifest.read_text(encoding="utf-8"))["kernels"]}
    assert f"{len(ops)} ops on PoCL" in README.read_text(encoding="utf-8")


def test_the_command_lines_page_counts_the_commands_right() -> None:
    text = (ROOT / "docs/cli.md").read_text(encoding="utf-8")
    counted = re.findall(r"^(\d+) commands\.", text, re.MULTILINE)
    listed = re.findall(r"^\| \[`(\w+)`\]\(#\w+\) \|", text, re.MULTILINE)
    assert counted == [str(len(listed))]
    assert set(listed) == set(COMMANDS)
