"""The map of the code names the folders, modules and words that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORE, KIT = ROOT / "portakernel", ROOT / "kit" / "portakernel_kit"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")

packages = pytest.mark.parametrize("package", [CORE, KIT], ids=lambda package: package.name)


def rooms_on_the_page(package):
    folder = package.relative_to(ROOT).as_posix()
    found, above = [], ""
    for line in re.search(rf"```\n{folder}/\n(.*?)```", PAGE, re.DOTALL)[1].splitlines():
        indent, name = re.match(r"( +)(\w+)/ ", line).groups()
        above = name if len(indent) == 4 else above
        found.append(name if len(indent) == 4 else f"{above}/{name}")
    return found


def layers(package):
    """The folders in `.importlinter`, highest first; several may stand on one layer."""
    contract = rf"\ncontainers = {package.name}\n.*?\nlayers =\n(.*?)\n\n"
    text = re.search(contract, (ROOT / ".importlinter").read_text(encoding="utf-8"), re.DOTALL)[1]
    rows = [re.findall(r"\w+", line) for line in text.splitlines()]
    return [[name for name in row if (package / name).is_dir()] for row in rows]


@packages
def test_the_tree_has_the_folders_that_there_are(package):
    folders = {path.name for path in package.iterdir() if path.is_dir() and any(path.iterdir())} - {"__pycache__"}
    rooms = rooms_on_the_page(package)
    assert {name for name in rooms if "/" not in name} == folders
    inner = {f"{path.parent.parent.name}/{path.parent.name}" for path in package.glob("*/*/__init__.py")}
    assert {name for name in rooms if "/" in name} == {
        name
        for name in inner
        if not name.startswith("cli/")  # each is named as its command
    }


@packages
def test_the_tree_stands_in_the_order_that_the_linter_holds(package):
    places = {name: place for place, row in enumerate(layers(package)) for name in row}
    rooms = rooms_on_the_page(package)
    order = [places[name] for name in rooms if name in places]
    assert len(order) == len(places)
    assert order == sorted(order)


def named_paths():
    return sorted(set(re.findall(r"`((?:[a-z_]+/)*[a-z_]+(?:\.py|/))`", PAGE)))


@pytest.mark.parametrize("path", named_paths())
def test_what_the_page_names_is_there(path):
    places = (CORE / path, CORE / "calling" / path, KIT / path, ROOT / path)
    assert any(place.exists() for place in places)


def test_each_word_is_explained_once():
    words = re.findall(r"^\| ([a-z, ]+) \|", PAGE, re.MULTILINE)
    each = [word.strip() for row in words if row != "word" for word in row.split(",")]
    assert len(each) == len(set(each)) > 20
