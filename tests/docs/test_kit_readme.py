"""The README of the conformance kit names the modules that there are, each by its path."""

from __future__ import annotations

import re
from pathlib import Path

KIT = Path(__file__).parents[2] / "kit" / "portakernel_kit" / "conformance"
README = (KIT / "README.md").read_text(encoding="utf-8")


def named():
    """What stands in the first column of the table of files; a folder ends in a slash."""
    _, table = README.split("\n## The files\n")
    return [name for cell in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(.*?)`", cell)]


def test_every_file_that_the_table_names_exists_and_is_named_once():
    assert [name for name in named() if not (KIT / name).exists()] == []
    assert len(set(named())) == len(named())


def test_every_module_is_named_or_its_folder_is():
    modules = {path.relative_to(KIT).as_posix() for path in KIT.rglob("*.py") if not path.name.startswith("__")}
    folders = tuple(name for name in named() if name.endswith("/"))
    assert {module for module in modules if not module.startswith(folders)} == {
        name for name in named() if not name.endswith("/")
    }


def test_a_file_of_the_kit_in_the_text_is_one_that_exists():
    text = re.sub(r"\n\| `drawn/` .*", "", README)
    inside = re.findall(r"`((?:mutation/|observing/|drawn/)?[a-z_]+\.py)`", text)
    assert [name for name in inside if not (KIT / name).exists()] == []
