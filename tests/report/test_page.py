"""The report's page: whole without a network, safe whatever its names are, as wide as its window and no wider."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from browsing import DESKTOP
from made_reports import report, served, workload

from portakernel.report.content import Broken, DeviceFacts, Improvement, PassedOver, PlanState, Report, StoreState
from portakernel.report.page import SOURCES
from portakernel.report.page import page as report_page

PHONE = {"width": 390, "height": 844}
HOSTILE = "<img src=x onerror=alert(1)>\"'&{{7*7}}</style><script>alert(2)</script>\u202e\x1b[31m"
LONG = "a_plugin_with_a_name_that_never_ends_" * 4


def full(name: str = "acme") -> Report:
    """A report with something in every place, in which ``name`` stands wherever a stranger's text does."""
    over = PassedOver(f"{name}.fast", (f"needs {name}",), f"pip install {name}")
    decisions = [
        served(
            7 * (i + 1),
            source=source,
            kernel=f"{name}{i}.add" if source != "none" else None,
            said=f"add of {name} on nvidia:sm_90 with x bfloat16, M=64, N=4096",
            why=f"{name} says so",
            notes=(f"note of {name}",),
            stale=(f"driver of {name}",),
            measured=f"{name}.other",
            measured_why=f"by {name}",
            passed_over=(over,),
            slow_reference=i == 1,
            explain=f"portakernel explain {name}",
        )
        for i, source in enumerate(SOURCES)
    ]
    return report(
        workload=workload(*decisions, file=f"{name}.yaml"),
        plan=PlanState(
            f"{name}.yaml", f"sha256:{'0' * 64}", "everything", (f"{name}/1",), 3, (name,), (name,), (name,), 4
        ),
        devices=(DeviceFacts(name, name, 132, "cuda:0", name, 1 << 34, note=name),),
        stores=(StoreState(name, False, 9, 1, 2, 3, (f"1: {name}",), name, name),),
        broken=(Broken(name, "import", name, f"upgrade {name}"),),
        help=(Improvement("passed_over", f"{name} would help", f"pip install {name}", 9, 0.5, name, (name,)),),
        findings=({"state": "attention", "what": name, "action": name, "details": []},),
        versions={"torch": name},
        judged_for=name,
    )


@pytest.fixture
def shown(tmp_path: Path, page: Any) -> Any:
    """Opens a report in the browser."""

    def open_page(made: Report) -> Any:
        path = tmp_path / "report.html"
        path.write_text(report_page(made), encoding="utf-8")
        page.goto(path.as_uri())
        return page

    return open_page


def test_nothing_is_loaded_from_elsewhere_and_nothing_runs() -> None:
    text = report_page(full())
    assert re.findall(r"(?:src|href)=\"(?!#)([^\"]*)", text) == ["data:,"]
    assert not re.search(r"<script|@import|url\(|\son\w+=", text)
    assert "default-src 'none'" in text


def test_names_of_strangers_are_shown_and_not_obeyed(shown: Any) -> None:
    text = report_page(full(HOSTILE))
    assert "<img" not in text
    assert "<script" not in text
    assert text.count("</style>") == 1
    assert "{{7*7}}" in text  # a template's expression is a name, too
    assert not {"\u202e", "\x1b"} & {*text}
    opened = shown(full(HOSTILE))  # the browser complains of whatever runs, or is asked for
    assert "<img src=x onerror=alert(1)>" in opened.locator("#broken").inner_text()
    assert "\\u202e" in opened.locator("#devices").inner_text()
    assert opened.locator("img, script, iframe").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
@pytest.mark.parametrize("name", ["acme", LONG, HOSTILE], ids=["short", "long", "hostile"])
def test_page_plots_and_legends_stay_inside_the_window(shown: Any, name: str, size: Any, scheme: Any) -> None:
    made = full(name)
    opened = shown(made)
    opened.emulate_media(color_scheme=scheme)
    opened.set_viewport_size(size)
    assert opened.evaluate("document.documentElement.scrollWidth") == size["width"]
    items = opened.locator(".legend li, svg, svg text, svg rect")
    assert items.count() > 20
    boxes = opened.evaluate(
        "[...document.querySelectorAll('.legend li, svg, svg text, svg rect')].map(one => one.getBoundingClientRect())"
        ".map(box => [box.left, box.right])"
    )
    assert min(left for left, _ in boxes) >= 0
    assert max(right for _, right in boxes) <= size["width"]
    # a name and its number stand on one line, and do not meet
    rows = opened.evaluate(
        "[...document.querySelectorAll('.bars g')].map(g => [...g.querySelectorAll('text')]"
        ".map(one => one.getBoundingClientRect()).map(box => [box.left, box.right]))"
    )
    assert all(name_right < number_left for (_, name_right), (number_left, _) in rows)


def test_bars_are_as_long_as_shares_and_the_legend_says_them(shown: Any) -> None:
    calls = {"priority": 60, "measured": 30, "none": 10}
    decisions = [served(n, source=source, kernel=f"{source}.add") for source, n in calls.items()]
    opened = shown(report(workload=workload(*decisions)))
    whole = opened.locator("svg.stack").bounding_box()["width"]
    for source, count in calls.items():
        box = opened.locator(f"svg.stack rect.{source}").bounding_box()
        assert box["width"] == pytest.approx(whole * count / 100, abs=1)
    legend = opened.locator(".legend li").all_inner_texts()
    assert [re.sub(r"\s", " ", text) for text in legend] == [
        "M a measurement: 30 calls, 30.0 %",
        "p priorities: 60 calls, 60.0 %",
        "! no kernel serves: 10 calls, 10.0 %",
    ]
    bars = opened.locator("svg.bars rect.bar")
    assert [round(bars.nth(i).bounding_box()["width"] / whole, 2) for i in range(3)] == [0.6, 0.3, 0.1]


def test_many_kernels_are_drawn_as_the_most_and_the_others_together(shown: Any) -> None:
    opened = shown(report(workload=workload(*(served(100 - i, kernel=f"acme.k{i}") for i in range(30)))))
    names = opened.locator("svg.bars text.name").all_text_contents()
    assert (names[0], names[11], names[12], len(names)) == ("acme.k0", "acme.k11", "18 other kernels", 13)


def test_every_decision_is_a_row_the_most_called_first_and_a_card_on_a_phone(shown: Any) -> None:
    made = report(workload=workload(*(served(n, said=f"call {n}") for n in (1, 5, 3))))
    opened = shown(made)
    rows = opened.locator("#decisions tbody tr")
    assert [rows.nth(i).locator("td").nth(1).inner_text() for i in range(3)] == ["call 5", "call 3", "call 1"]
    for size in (DESKTOP, PHONE):
        opened.set_viewport_size(size)
        cells = rows.first.locator("td")
        tops = {round(cells.nth(i).bounding_box()["y"]) for i in range(cells.count())}
        assert (len(tops) > 1) == (size is PHONE)


def test_without_a_workload_nothing_is_drawn(shown: Any) -> None:
    opened = shown(report())
    assert opened.locator("svg").count() == 0
    assert "No workload was given" in opened.locator("#decisions").inner_text()


def test_the_same_report_is_the_same_data_and_names_its_form() -> None:
    data = full().to_json()
    assert data["schema_version"] == 1
    assert data["help"][0]["weight"] == 4.5
    assert data["workload"]["decisions"][0]["passed_over"][0]["kernel"] == "acme.fast"
