"""``portakernel build``, with a shell script in nvcc's place."""

from __future__ import annotations

from pathlib import Path

import pytest

from portakernel.native import toolchain

MANIFEST = """\
schema_version: 1
plugin: acme
units: acme_for_cli_tests:units
kernels:
  - {op: add, entry: "acme_for_cli_tests:add", targets: {nvidia: any}, dtypes: {x: [float32], y: [x]}}
"""
SOURCE = """\
from pathlib import Path
from portakernel.authoring.native import Limits, Options, Source, Unit
def units(target):
    if target.vendor != "nvidia":
        return
    for name in ("first", "second"):
        yield Unit(Source(Path(__file__).parent, f"{name}.cu"), (name,), Options(compilers=("nvcc",)), form="library")
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PORTAKERNEL_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def acme(tmp_path, monkeypatch, install):
    """A plugin with two units; nvcc copies the source, and fails where that says so."""
    place = install("acme", manifest=MANIFEST, source=SOURCE)
    for name in ("first", "second"):
        (place / f"{name}.cu").write_text(f"// {name}\n")
    (tmp_path / "bin").mkdir()
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo "release 13.0, V13.0.88" && exit 0\n'
        'while [ $# -gt 0 ]; do [ "$1" = -o ] && code="$2"; main="$1"; shift; done\n'
        'if grep -q wrong "$main"; then echo "$main(1): error: wrong"; exit 1; fi\ncp "$main" "$code"\n'
    )
    nvcc.chmod(0o755)
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    toolchain._found.cache_clear()
    yield place
    toolchain._found.cache_clear()


def rows(out):
    return [line.split()[:4] for line in out.splitlines()[3:]]


def test_it_builds_what_the_plugin_lists_and_keeps_it(run, acme):
    first = run("build acme --target nvidia:sm_90 --workers 2")
    assert (first.status, first.err) == (0, "")
    assert first.out.splitlines()[1] == "Built ahead"
    assert rows(first.out) == [
        ["first.cu", "library", "nvidia:sm_90", "built"],
        ["second.cu", "library", "nvidia:sm_90", "built"],
    ]
    again = run("build acme --target nvidia:sm_90 --target nvidia:sm_80")
    assert [row[2:] for row in rows(again.out)] == [["nvidia:sm_80", "built"], ["nvidia:sm_90", "kept"]] * 2


def test_what_fails_is_told_with_file_and_line_and_the_rest_is_built(run, acme):
    (acme / "second.cu").write_text("wrong\n")
    ran = run("build acme --target nvidia:sm_90")
    assert ran.status == 1
    assert [row[3] for row in rows(ran.out)[:2]] == ["built", "fails"]
    path = acme / "second.cu"
    assert ran.out.splitlines()[-2:] == [
        "second.cu for nvidia:sm_90: cannot_run",
        f"    nvcc 13.0.88 cannot compile {path} for nvidia:sm_90: {path}:1: wrong",
    ]
    assert run("build acme --target nvidia:sm_90 --verbose").out.splitlines()[-1] == f"    {path}(1): error: wrong"


def test_json_holds_the_same(run, acme):
    (acme / "second.cu").write_text("wrong\n")
    answer = run("build", "acme", "--target", "nvidia:sm_90", "--json").json
    assert (answer["plugin"], answer["interrupted"]) == ("acme", False)
    found = {unit["source"]: (unit["verdict"], unit["code"], unit["bytes"]) for unit in answer["units"]}
    assert found == {"first.cu": ("built", "", 9), "second.cu": ("fails", "cannot_run", 0)}


def test_an_interrupt_ends_the_compilers_and_keeps_what_was_built(run, acme, monkeypatch):
    """The second one never ends of its own."""
    from portakernel.native import ahead

    nvcc = Path(toolchain.nvcc.on_path("nvcc")[0])
    endless = 'if grep -q second "$main"; then cat /dev/zero > /dev/null; fi\n'
    nvcc.write_text(nvcc.read_text().replace("if grep -q wrong", f"{endless}if grep -q wrong"))
    real = ahead.as_completed

    def interrupted(waiting):
        yield next(iter(real(waiting)))
        raise KeyboardInterrupt

    monkeypatch.setattr(ahead, "as_completed", interrupted)
    ran = run("build acme --target nvidia:sm_90 --workers 2")
    assert ran.status == 130
    assert ran.out.splitlines()[1] == "Interrupted; until then:"
    assert rows(ran.out) == [["first.cu", "library", "nvidia:sm_90", "built"]]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("build acmee --target nvidia:sm_90", "unknown plugin 'acmee'; did you mean 'acme'?"),
        (
            "build triton --target nvidia:sm_90",
            "build: triton lists nothing to build ahead (`units:` in its manifest); ",
        ),
        ("build acme --target amd:gfx942", "build: acme has nothing for amd:gfx942; name a target that it claims with"),
        ("build acme --target nvidia:sm_91", "unknown nvidia arch or product 'sm_91'"),
        ("build acme --target nvidia:gfx942", "it is amd:gfx942. nvidia has"),
    ],
)
def test_bad_input_is_refused_with_what_to_do(run, acme, line, message):
    ran = run(line)
    assert ran.status == 2
    assert message in ran.err
