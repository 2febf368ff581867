"""The map of the code names the folders, modules and words that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORE = ROOT / "portakernel"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
TREE = re.search(r"```\nportakernel/\n(.*?)```", PAGE, re.DOTALL)[1]


def rooms_on_the_page():
    found, above = [], ""
    for line in TREE.splitlines():
        indent, name = re.match(r"( +)(\w+)/ ", line).groups()
        above = name if len(indent) == 4 else above
        found.append(name if len(indent) == 4 else f"{above}/{name}")
    return found


def layers():
    """The folders in `.importlinter`, highest first; several may stand on one layer."""
    text = re.search(r"\nlayers =\n(.*?)\n\n", (ROOT / ".importlinter").read_text(encoding="utf-8"), re.DOTALL)[1]
    rows = [re.findall(r"\w+", line) for line in text.splitlines()]
    return [[name for name in row if (CORE / name).is_dir()] for row in rows]


def test_the_tree_has_the_folders_that_there_are():
    folders = {path.name for path in CORE.iterdir() if path.is_dir() and any(path.iterdir())} - {"__pycache__"}
    assert {name for name in rooms_on_the_page() if "/" not in name} == folders
    inner = {f"{path.parent.parent.name}/{path.parent.name}" for path in CORE.glob("*/*/__init__.py")}
    assert {name for name in rooms_on_the_page() if "/" in name} == {
        name
        for name in inner
        if not name.startswith("cli/")  # each is named as its command
    }


def test_the_tree_stands_in_the_order_that_the_linter_holds():
    places = {name: place for place, row in enumerate(layers()) for name in row}
    order = [places[name] for name in rooms_on_the_page() if name in places]
    assert len(order) == len(places)
    assert order == sorted(order)


def named_paths():
    return sorted(set(re.findall(r"`((?:[a-z_]+/)*[a-z_]+(?:\.py|/))`", PAGE)))


@pytest.mark.parametrize("path", named_paths())
def test_what_the_page_names_is_there(path):
    places = (CORE / path, CORE / "calling" / path, ROOT / path)
    assert any(place.exists() for place in places)


def test_each_word_is_explained_once():
    words = re.findall(r"^\| ([a-z, ]+) \|", PAGE, re.MULTILINE)
    each = [word.strip() for row in words if row != "word" for word in row.split(",")]
    assert len(each) == len(set(each)) > 20
