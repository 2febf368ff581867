"""The documentation as people see it: built without a warning, whole without a network, in a browser of each width."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlencode

import pytest
from browsing import DESKTOP, PHONE
from matrix_page import Choice, claims, expected, shown

from portakernel.claims.advice import REASONS
from portakernel.contracts import own_contracts

WEBSITE = Path(__file__).parents[2] / "website"
PAGES = ("index", "ops/index", "ops/scaled_mm", "reasons/index", "reasons/limit", "cli", "matrix-text", "matrix")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make site` builds it: a warning, such as a link that leads nowhere, ends the build."""
    pytest.importorskip("material", reason="lacks mkdocs-material: pip install 'portakernel[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--site-dir",
        str(folder),
    ]  # --quiet would hush --strict
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=WEBSITE, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return folder


# --- pages ----------------------------------------------------------------------------------------------------------


class _Links(HTMLParser):
    """A page's ids, what it links to, and what a browser loads for it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.ids |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif tag == "link" and found.get("rel") not in ("canonical", "next", "prev"):
            self.loads.append(found["href"])
        elif "src" in found:
            self.loads.append(found["src"])


read = cache(_Links)


def test_there_is_a_page_for_every_op_and_every_reason(site: Path) -> None:
    for folder, names in {"ops": own_contracts(), "reasons": REASONS}.items():
        assert {path.stem for path in (site / folder).glob("*.html")} == {"index", *map(str, names)}


def test_every_link_leads_to_a_place_that_is_there(site: Path) -> None:
    lost, followed = [], 0
    for path in site.rglob("*.html"):
        if path.name == "404.html":  # its links are for a server's root
            continue
        for link in read(path).links:
            file, _, anchor = unquote(link).partition("#")
            if re.match(r"https?:", file):
                continue
            followed += 1
            target = (path.parent / file).resolve() if file else path
            target = target / "index.html" if target.is_dir() else target
            kept = not anchor or target.name == "matrix.html" or (target.is_file() and anchor in read(target).ids)
            if not target.is_file() or not kept:
                lost.append((path.name, link))
    assert followed > 1000
    assert lost == []


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    def elsewhere(address: str) -> bool:
        return address.startswith(("http:", "https:", "//"))

    pages = [path for path in site.rglob("*.html") if path.name != "404.html"]
    assert [(path.name, load) for path in pages for load in read(path).loads if elsewhere(load)] == []
    styles = {path: path.read_text(encoding="utf-8") for path in [*site.rglob("*.css"), *pages]}
    found = [(path.name, url) for path, text in styles.items() for url in re.findall(r"url\(['\"]?([^)'\"]+)", text)]
    assert [(name, url) for name, url in found if elsewhere(url)] == []
    assert not any(re.search(r"@import\s", text) for text in styles.values() if "<html" not in text)


def test_the_matrix_is_one_file(site: Path) -> None:
    assert set(read(site / "matrix.html").loads) <= {"data:,"}


def _widths(page: Any) -> list[int]:
    """How wide the page is in a window of each width."""
    found = []
    for size in (PHONE, DESKTOP):
        page.set_viewport_size(size)
        found.append(page.evaluate("document.documentElement.scrollWidth"))
    return found


def test_no_page_is_wider_than_its_window(site: Path, page: Any) -> None:
    for name in PAGES:
        page.goto((site / f"{name}.html").as_uri())  # all of it: before its styles a page has other widths
        assert (name, _widths(page)) == (name, [PHONE["width"], DESKTOP["width"]])


def test_the_search_finds_without_a_server(site: Path, page: Any) -> None:
    page.set_viewport_size(PHONE)
    page.goto((site / "reasons" / "limit.html").as_uri())
    page.locator("label.md-header__button[for=__search]").click()
    page.locator("input[name=query]").click()
    page.keyboard.type("shared_memory")
    found = page.locator(".md-search-result__link").first
    found.wait_for()
    assert "reasons/shared_memory.html" in found.get_attribute("href")


# --- the matrix -----------------------------------------------------------------------------------------------------


def _fresh_choices() -> list[Choice]:
    """Choices that some claim fits, made of its own properties; one of a dtype that is claimed, and not proven."""
    proven = [(claim, proof) for claim in claims() for proof in claim["proofs"]]
    found = []
    for keys in (1, 3, 7):
        claim, proof = random.choice(proven)
        whole = {key: claim[key] for key in ("op", "vendor", "arch", "plugin")}
        whole |= {"dtype": random.choice(proof.dtypes), "proof": proof.kind}
        whole |= {"format": random.choice(proof.formats)} if proof.formats else {}
        found.append(dict(random.sample(sorted(whole.items()), min(keys, len(whole)))))
    several = [(claim, proof, claim["dtypes"] - {*proof.dtypes}) for claim, proof in proven if proof.kind != "ran"]
    claim, proof, others = random.choice([one for one in several if one[2]])
    plugin = {"op": claim["op"], "plugin": claim["plugin"]}
    return [*found, {**plugin, "dtype": random.choice(sorted(others)), "proof": proof.kind}]


@pytest.fixture
def matrix(site: Path, page: Any) -> Any:
    page.goto((site / "matrix.html").as_uri())
    return page


def test_filters_leave_the_rows_that_fit_and_no_others(matrix: Any) -> None:
    before: Choice = {}
    for choice in [*_fresh_choices(), {"op": "add", "format": "nvfp4"}]:
        # all that was chosen goes first: an option that the other filters leave nothing for cannot be chosen
        for name, value in [*((name, "") for name in before), *choice.items()]:
            matrix.select_option(f"#{name}", value)
        assert (choice, shown(matrix, choice)) == (choice, expected(choice))
        assert matrix.locator("#none").is_visible() == (not expected(choice))
        kernels = {kernel for kernel, _, _ in expected(choice)}
        assert matrix.locator("#count").inner_text().partition("; ")[2].startswith(f"kernels: {len(kernels)};")
        before = choice
    matrix.get_by_role("button", name="Show all").click()
    matrix.wait_for_function("location.hash.length < 2")
    assert shown(matrix, {}) == expected({})


def test_a_link_restores_the_filter_and_so_does_going_back(site: Path, page: Any) -> None:
    choices = _fresh_choices()[1:3]
    for choice in choices:
        page.goto("about:blank")
        page.goto(f"{(site / 'matrix.html').as_uri()}#{urlencode(choice)}")
        chosen = {name: page.locator(f"#{name}").input_value() for name in choice}
        assert (chosen, shown(page, choice)) == (choice, expected(choice))
    before = page.url
    page.select_option("#op", random.choice([op for op in own_contracts() if op != choices[-1].get("op")]))
    assert page.url != before
    page.go_back()
    assert (page.url, shown(page, choices[-1])) == (before, expected(choices[-1]))


def test_a_link_to_what_is_not_there_says_so(site: Path, page: Any) -> None:
    page.goto(f"{(site / 'matrix.html').as_uri()}#vendor=acme&op=add")
    told = page.get_by_role("alert").inner_text()
    assert told == "The address asks for vendor=acme, which this matrix does not have."
    assert shown(page, {}) == expected({"op": "add"})


def test_an_arch_of_another_vendor_gives_way(matrix: Any) -> None:
    matrix.select_option("#arch", "sm_90")
    matrix.select_option("#vendor", "amd")
    assert matrix.locator("#arch").input_value() == ""
    assert shown(matrix, {}) == expected({"vendor": "amd"})


def test_a_keyboard_suffices_and_a_screen_reader_is_told(matrix: Any) -> None:
    for _ in ("the link to the documentation", "the picture", "the ops", "the vendors"):
        matrix.keyboard.press("Tab")
    assert matrix.evaluate("document.activeElement.id") == "vendor"
    matrix.keyboard.type("nv")
    assert shown(matrix, {}) == expected({"vendor": "nvidia"})
    assert matrix.get_by_label("Vendor", exact=True).input_value() == "nvidia"
    assert matrix.get_by_role("status").inner_text() == matrix.locator("#count").inner_text()


def test_a_row_becomes_a_card_on_a_phone_and_stays_a_row_of_a_table(matrix: Any) -> None:
    matrix.select_option("#op", "scaled_mm")
    kernels = matrix.locator("tr[data-kernel]:visible").count()
    for size in (PHONE, DESKTOP):
        matrix.set_viewport_size(size)
        cells = matrix.locator("tr[data-kernel]:visible").first.locator("td:visible")
        tops = {round(cells.nth(i).bounding_box()["y"]) for i in range(cells.count())}
        assert (len(tops) > 1) == (size is PHONE)
        # beside the kernels' rows those of the headers: the columns', and the op's
        table = matrix.locator("#matrix").get_by_role("table")
        assert table.get_by_role("row").count() == kernels + 1 + 1
        assert table.get_by_role("rowheader").inner_text().startswith("scaled_mm")
