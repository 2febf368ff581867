"""The picture of the matrix: what its cells say, what a click or a key on them leaves of the rows, how it fits."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from xml.etree import ElementTree

import pytest
from browsing import DESKTOP
from matrix_page import Choice, claims, expected, shown
from portakernel_pages.generate import first_party, generated

from portakernel.matrix.page import page as matrix_page
from portakernel.matrix.page.levels import COMPILED, EMULATED, LEVELS, NATIVE, Column, levels, possible_levels
from portakernel.matrix.proofs import KINDS, recorded
from portakernel.matrix.table import support_matrix

DOCS = Path(__file__).parents[2] / "docs"
PHONE = {"width": 390, "height": 844}
ORDER = ("ran", "emulated", "native", "compiled")
WORDS = {"ran": "ran", "emulated": "emulated", "native": "native instruction", "compiled": "compiled"}


def _proven() -> dict[tuple[str, str, str], str]:
    """By op, vendor and arch the best that is proven, in words: of what `matrix --json` and the record have."""
    found: dict[tuple[str, str, str], set[str]] = {}
    disabled = {name for name, kernel in first_party().kernels.items() if kernel.disabled is not None}
    for claim in claims():
        if claim["kernel"] in disabled:
            continue
        kinds = found.setdefault((claim["op"], claim["vendor"], claim["arch"]), set())
        if not claim["kernel"].startswith("reference."):
            of_it = {proof.kind for proof in claim["proofs"] if {*proof.dtypes} & claim["dtypes"]}
            kinds.update(of_it or {"declared"})
    words = {**WORDS, "declared": "declared"}
    return {place: _best(kinds, words) for place, kinds in found.items()}


def _best(kinds: set[str], words: dict[str, str]) -> str:
    return next((words[kind] for kind in (*ORDER, "declared") if kind in kinds), "reference only")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("matrix") / "matrix.html"
    path.write_text(matrix_page(support_matrix(first_party()), recorded()), encoding="utf-8")
    return path


@pytest.fixture
def matrix(file: Path, page: Any) -> Any:
    page.goto(file.as_uri())
    return page


def _name(op: str, vendor: str, arch: str) -> str:
    return f"{op} on {vendor} {arch}: {_proven()[op, vendor, arch]}"


def test_a_cell_says_the_best_that_is_proven() -> None:
    picture = levels(support_matrix(first_party()), recorded())
    found = {(op, *column): level.words for (op, column), level in picture.cells.items()}
    assert found == _proven()
    assert {"ran", "declared", "reference only"} <= set(found.values())


def test_another_proof_raises_a_cell_and_no_other() -> None:
    matrix, proofs = support_matrix(first_party()), recorded()
    before = levels(matrix, proofs)
    kernels = first_party().kernels
    places = ((p, (kernels[p.kernel].op, Column(*p.target.split(":")))) for p in proofs if p.kind == "native")
    proof, place = next((p, place) for p, place in places if before.cells[place] == NATIVE)
    after = levels(matrix, [*proofs, replace(proof, kind="ran", by="check")])
    assert {cell for cell, level in after.cells.items() if level != before.cells[cell]} == {place}
    less = levels(matrix, [p for p in proofs if p.kind == "compiled"])
    assert less.cells[place] == COMPILED


def test_each_kind_of_proof_has_its_level_and_the_legend_has_those_that_there_are() -> None:
    assert {level.proof for level in LEVELS} - {"", EMULATED.proof} == {*KINDS} - {EMULATED.proof}
    assert [level for level in LEVELS if level.proof in ("", *KINDS)] == list(possible_levels())
    letters = [level.letter for level in LEVELS]
    assert len({*letters}) == len(letters)


def test_nothing_is_drawn_where_nothing_is_claimed() -> None:
    assert "<figure" not in matrix_page(())
    nvidia = levels(support_matrix(first_party(), plugin="cutlass"))
    assert {column.vendor for _, column in nvidia.cells} == {"nvidia"}


def test_a_click_on_a_cell_an_op_an_architecture_and_a_vendor_leaves_their_rows(matrix: Any) -> None:
    claim = random.choice(claims())
    choices: dict[str, Choice] = {
        _name(claim["op"], claim["vendor"], claim["arch"]): {k: claim[k] for k in ("op", "vendor", "arch")},
        f"all of {claim['op']}": {"op": claim["op"]},
        f"all of {claim['vendor']} {claim['arch']}": {"vendor": claim["vendor"], "arch": claim["arch"]},
        f"all of {claim['vendor']}": {"vendor": claim["vendor"]},
    }
    for name, choice in choices.items():
        matrix.get_by_role("link", name=name, exact=True).click()
        matrix.locator(f'a[aria-current="true"][aria-label="{name}"]').wait_for()
        assert (choice, shown(matrix, choice)) == (choice, expected(choice))
        assert matrix.evaluate("location.hash") == f"#{urlencode(choice)}"
        rows = matrix.locator("tr[data-kernel]:visible").count()
        assert matrix.locator("#count").inner_text().startswith(f"{rows} of ")
    matrix.go_back()  # the page hears of it a moment later
    matrix.locator(f'a[aria-current="true"][aria-label="all of {claim["vendor"]} {claim["arch"]}"]').wait_for()
    before = {"vendor": claim["vendor"], "arch": claim["arch"]}
    assert shown(matrix, before) == expected(before)
    matrix.get_by_role("button", name="Show all").click()
    assert matrix.locator('#picture [aria-current="true"]').count() == 0
    assert shown(matrix, {}) == expected({})


def test_a_link_to_a_cell_opens_with_its_rows_and_marks_it(file: Path, page: Any) -> None:
    claim = random.choice(claims())
    choice = {key: claim[key] for key in ("op", "vendor", "arch")}
    page.goto(f"{file.as_uri()}#{urlencode(choice)}")
    assert shown(page, choice) == expected(choice)
    marked = page.locator('#picture [aria-current="true"]')
    assert [one.get_attribute("aria-label") for one in marked.all()] == [_name(*choice.values())]


def test_arrows_lead_through_the_picture_and_enter_and_space_choose(matrix: Any) -> None:
    focused = "document.activeElement.getAttribute('aria-label')"
    matrix.keyboard.press("Tab")
    heads = matrix.locator("#picture thead tr").first.locator("a")
    assert matrix.evaluate(focused) == heads.first.get_attribute("aria-label")
    vendor = heads.first.inner_text()
    for key, name in {
        "ArrowRight": heads.nth(1).get_attribute("aria-label"),
        "ArrowLeft": f"all of {vendor}",
    }.items():
        matrix.keyboard.press(key)
        assert matrix.evaluate(focused) == name
    matrix.keyboard.press("ArrowDown")
    arch = matrix.evaluate(focused).removeprefix(f"all of {vendor} ")
    matrix.keyboard.press("ArrowDown")
    op = next(iter(first_party().ops))
    assert matrix.evaluate(focused) == _name(op, vendor, arch)
    matrix.keyboard.press("Enter")
    choice = {"op": op, "vendor": vendor, "arch": arch}
    assert shown(matrix, choice) == expected(choice)
    matrix.keyboard.press("Home")
    assert matrix.evaluate(focused) == f"all of {op}"
    matrix.keyboard.press("Space")
    assert shown(matrix, {"op": op}) == expected({"op": op})
    matrix.keyboard.press("Tab")  # one of all is in the order of tabs
    assert matrix.evaluate("document.activeElement.closest('#picture')") is None


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_it_scrolls_inside_its_box_and_each_letter_can_be_read(matrix: Any, size: Any, scheme: Any) -> None:
    matrix.emulate_media(color_scheme=scheme)
    matrix.set_viewport_size(size)
    assert matrix.evaluate("document.documentElement.scrollWidth") == size["width"]
    box = matrix.locator("#picture .grid").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= size["width"]
    for level in matrix.locator("#picture .legend li").all():
        at = level.bounding_box()
        assert at["x"] + at["width"] <= size["width"]
    # the ops stay in sight when the picture is scrolled
    matrix.locator("#picture .grid").evaluate("box => { box.scrollLeft = box.scrollWidth; }")
    assert matrix.locator("#picture tbody th").first.bounding_box()["x"] == pytest.approx(box["x"], abs=2)
    contrasts = matrix.evaluate(_CONTRASTS)
    assert len(contrasts) == len(possible_levels())
    assert min(contrasts.values()) >= 4.5, contrasts  # WCAG 2.2, 1.4.3


# Of each level in the legend the contrast of its letter to what is behind it.
_CONTRASTS = """() => {
  const light = (text) => {
    const parts = text.match(/[\\d.]+/g).slice(0, 3).map((part) => part / 255);
    const [r, g, b] = parts.map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (one) => {
    const colour = getComputedStyle(one).backgroundColor;
    return colour === "rgba(0, 0, 0, 0)" ? behind(one.parentElement) : colour;
  };
  const found = {};
  for (const one of document.querySelectorAll("#picture .legend .level")) {
    const [a, b] = [light(getComputedStyle(one).color), light(behind(one))].sort((x, y) => y - x);
    found[one.className] = (a + 0.05) / (b + 0.05);
  }
  return found;
}"""


def test_the_drawing_beside_the_text_says_the_same() -> None:
    drawing = ElementTree.fromstring((DOCS / "matrix.svg").read_text(encoding="utf-8"))
    assert (DOCS / "matrix.svg").read_text(encoding="utf-8") == generated()[DOCS / "matrix.svg"]
    picture = levels(support_matrix(first_party()), recorded())
    svg = "{http://www.w3.org/2000/svg}"
    drawn = {}
    for line in drawing.findall(f"{svg}g"):
        op = line.findtext(f"{svg}text")
        lefts = {use.get("x"): use.get("href", "")[1:] for use in line.findall(f"{svg}use")}
        drawn |= {(op, float(left or 0)): level for left, level in lefts.items()}
    places = sorted({left for _, left in drawn})
    columns = dict(zip(places, picture.columns, strict=True))
    assert {(op, columns[left]): level for (op, left), level in drawn.items()} == {
        cell: level.name for cell, level in picture.cells.items()
    }
    width = float(drawing.get("width", "0"))
    assert width > max(places)
    legend = [float(text.get("x", "0")) for text in drawing.findall(f"{svg}text") if text.get("class") is None]
    assert max(legend) + 130 <= width  # a word of the legend is at most that wide
    assert not re.search(r"(?:href|src)=[\"'](?!#)|url\(|@import", (DOCS / "matrix.svg").read_text(encoding="utf-8"))


def test_the_text_opens_with_the_drawing() -> None:
    title, picture, legend = (DOCS / "matrix.md").read_text(encoding="utf-8").split("\n\n")[:3]
    assert (title, picture[:2], picture[-13:]) == ("# Support matrix", "![", "](matrix.svg)")
    assert all(f"{level.letter}: {level.words}" in legend for level in possible_levels())
