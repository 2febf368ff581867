"""``portakernel matrix``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

MANIFEST = """\
schema_version: 1
plugin: acme
defaults: {dtypes: {x: [float16], y: [x]}}
kernels:
  - {op: add, entry: "acme_for_cli_tests:add", targets: {nvidia: sm_120+}, limits: {M: {min: 1}}, priority: 7}
  - {op: add, name: slow, entry: "acme_for_cli_tests:add", targets: {nvidia: sm_121}, disabled: "too slow"}
"""


def test_people_read_claims_and_where_they_hold_in_markdown(run: Callable, install: Callable[..., Path]) -> None:
    install("acme", manifest=MANIFEST)
    out = run("matrix --plugin acme").out
    assert out.startswith("# Support matrix\n")
    assert out.split("## add\n", 1)[1] == (
        "\nThe elementwise sum of two tensors of one shape and dtype.\n\n"
        "| kernel | dtypes | limits | priority |\n|---|---|---|---|\n"
        "| `acme.add` | x: float16; y: x | M >= 1 | 7 |\n"
        "| `acme.slow`, disabled: too slow | x: float16; y: x | – | 0 |\n\n"
        "| vendor | architectures | `acme.add` | `acme.slow` |\n|---|---|---|---|\n"
        "| nvidia | blackwell-geforce: sm_120 | native | – |\n"
        "| nvidia | blackwell-geforce: sm_121 | native | native |\n"
    )


def test_json_form_key_by_key(run: Callable, install: Callable[..., Path]) -> None:
    install("acme", manifest=MANIFEST)
    (support,) = run("matrix --op add --plugin acme --vendor nvidia --json").json["ops"]
    assert list(support) == ["op", "summary", "kernels", "places"]
    assert support["kernels"] == [
        {"kernel": "acme.add", "plugin": "acme", "backward": False, "disabled": None},
        {"kernel": "acme.slow", "plugin": "acme", "backward": False, "disabled": "too slow"},
    ]
    marks = {"native": ["float16"], "emulated": [], "absent": []}
    none = {"native": [], "emulated": [], "absent": []}
    assert support["places"][0] == {
        "vendor": "nvidia",
        "family": "blackwell-geforce",
        "archs": ["sm_120"],
        "kernels": [{"kernel": "acme.add", "dtypes": marks, "formats": none, "features": []}],
    }


def test_filters_narrow_it_down(run: Callable) -> None:
    ops = run("matrix --op rms_norm --vendor cpu --json").json["ops"]
    assert [op["op"] for op in ops] == ["rms_norm"]
    assert {place["vendor"] for place in ops[0]["places"]} == {"cpu"}
    assert "triton.rms_norm" not in [kernel["kernel"] for kernel in ops[0]["kernels"]]
    assert run("matrix --plugin triton --vendor cpu --json").json == {"ops": []}
    assert run("matrix --plugin triton --vendor cpu").out.endswith("\nNo kernel claims that.\n")


def test_an_overview_stands_before_several_ops(run: Callable) -> None:
    lines = run("matrix").out.splitlines()
    header, row = (next(line for line in lines if line.startswith(start)) for start in ("| op |", "| [`add`](#add) |"))
    plugins = dict(zip(header.strip("| ").split(" | "), row.strip("| ").split(" | "), strict=True))
    assert plugins["nvidia"].split(", ")[-1] == "reference"
    assert "triton" in plugins["amd"].split(", ")
    assert "triton" not in plugins["cpu"].split(", ")
    assert "Overview" not in run("matrix --op add").out


def test_unknown_names_are_told_with_the_nearest(run: Callable) -> None:
    for arguments, message in {
        "--op ad": "unknown op 'ad'; did you mean 'add'?",
        "--vendor h100": "unknown vendor 'h100'; did you mean 'nvidia'? h100 is nvidia:sm_90",
        "--vendor amdd": "unknown vendor 'amdd'; did you mean 'amd'?",
        "--plugin tritn": "unknown plugin 'tritn'; did you mean 'triton'?",
    }.items():
        ran = run(f"matrix {arguments}")
        assert (ran.status, ran.out, ran.err) == (2, "", f"portakernel: {message}\n")


def test_broken_packages_are_named_on_stderr(run: Callable, install: Callable[..., Path]) -> None:
    install("acme", manifest="schema_version: 1\nplugin: other\n")
    assert run("matrix --op add").err == "left out, being broken: acme; `portakernel doctor` says why\n"


def test_a_page_for_browsers_is_written_with_what_else_was_proven(
    run: Callable, install: Callable[..., Path], tmp_path: Path
) -> None:
    install("acme", manifest=MANIFEST)
    page, output = tmp_path / "matrix.html", tmp_path / "compiled.json"
    call = "acme.add for nvidia:sm_120 (multiple of blocks, float16)"
    compiled = {"kernel": "acme.add", "target": "nvidia:sm_120", "call": call, "verdict": "compiles"}
    circumstances = {"date": "2026-11-22T12:24:48+00:00", "versions": {}}
    output.write_text(json.dumps({"circumstances": circumstances, "outcomes": [compiled]}), encoding="utf-8")
    ran = run("matrix", "--plugin", "acme", "--html", str(page), "--proof", str(output))
    assert (ran.status, ran.out, ran.err) == (0, f"wrote {page}\n", "")
    text = page.read_text(encoding="utf-8")
    assert text.count('<tr role="row" data-kernel=') == 3
    assert 'data-arch="sm_120" data-dtype="float16" data-format="" data-proof="compiled:float16:"' in text
    assert text.count("claimed only") == 1 + 2  # the row of sm_121, that of acme.slow, and what the word means


def test_a_page_that_cannot_be_proven_is_not_written(run: Callable, tmp_path: Path) -> None:
    page, output = tmp_path / "matrix.html", tmp_path / "other.json"
    output.write_text("{}", encoding="utf-8")
    ran = run("matrix", "--html", str(page), "--proof", str(output))
    assert (ran.status, page.exists()) == (2, False)
    assert ran.err.startswith(f"portakernel: {output}: needs what `portakernel compile`")
    assert run("matrix", "--proof", str(output)).status == 2


def test_a_page_that_cannot_be_written_says_why(run: Callable, tmp_path: Path) -> None:
    for page in (tmp_path, tmp_path / "none" / "matrix.html"):
        ran = run("matrix", "--html", str(page))
        assert (ran.status, ran.out) == (2, "")
        assert re.search(
            rf"{re.escape(str(page))} cannot be written: .*; name a file in a folder that exists with --html", ran.err
        )


def test_a_broken_plugin_is_not_only_unknown(run: Callable, install: Callable[..., Path]) -> None:
    install("acme", manifest="schema_version: 1\nplugin: other\n")
    ran = run("matrix --plugin acme")
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.endswith("acme is broken: run `portakernel doctor`.\n")
    error = run("matrix --plugin acme --json").json["error"]
    assert error["message"].endswith("acme is broken: run `portakernel doctor`.")
