"""What goes into a pipe or a file is 100 columns wide, or as wide as COLUMNS says; words stay whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from portakernel.authoring.native import CodeObject, KernelFacts, cache
from portakernel.cli.output import Page
from portakernel.contracts import own_contracts
from portakernel.words.target import Target

# Paths, commands to copy and lists without a space: nothing to break, and nobody would want it broken.
UNBREAKABLE = 50
COMMANDS = (
    "list",
    "list --op attention",
    "doctor",
    "doctor --verbose",
    "validate",
    "cache list",
    "warmup --help",
    "compile --plugin triton --op add --target amd:gfx942",
    "warmup add --shape x=4x8 --dtype float32",
    "check --plugin torch --op add --budget 0",
    "bench add --shape x=4x8 --kernel torch.add",
    "new plugin width_of_a_line",
    *(
        f"explain {op} --target {target}"
        for op in own_contracts()
        for target in ("nvidia:sm_90", "amd:gfx942", "cpu:x86_64")
    ),
    "explain attention --target nvidia:sm_100 --dtype float32 --phase training --set softcap=30.0",
)


@pytest.fixture(autouse=True)
def _piped(_environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS")


def too_wide(text: str, width: int) -> list[str]:
    return [line for line in text.splitlines() if len(line) > width and max(map(len, line.split())) < UNBREAKABLE]


@pytest.mark.turns(3)
@pytest.mark.parametrize("command", COMMANDS)
def test_no_line_is_wider_than_a_hundred_columns(
    run: Callable, command: str, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(str(tmp_path))
    monkeypatch.setenv("PORTAKERNEL_CACHE_DIR", f"{tmp_path}/cache")  # whatever the machine has built
    ran = run(command)
    assert ran.out != "", ran.err
    assert too_wide(ran.out, 100) == []


def test_a_cache_of_long_names_is_no_wider(run: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORTAKERNEL_CACHE_DIR", str(tmp_path))
    facts = tuple(KernelFacts(name, name) for name in ("quantize_fp8_of_whole_squares_of_weights", "of_rows"))
    for number, compiler in enumerate(("clang 22.1.8 with HIP 7.1.25424", "nvcc 13.0.88")):
        key = f"{number:040x}-{0:012x}"
        made = CodeObject(key, "code object", Target.parse("amd:gfx1100"), compiler, facts, None, b"code")
        assert cache().store(made, "quantize_fp8.hip ELEMENT=bfloat16 FORMAT=float8_e4m3fnuz WHOLE=1").path is not None
    ran = run("cache list")
    assert "quantize_fp8_of_whole_squares_of_weights," in ran.out
    assert too_wide(ran.out, 100) == []


def test_an_error_in_a_pipe_is_one_line_however_long(run: Callable) -> None:
    ran = run("explain scaled_mm --dtype float4_e2m1fn_x2 --target nvidia:sm_90")
    assert len(ran.err) > 200
    assert ran.err.count("\n") == 1


def test_columns_says_how_wide(run: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "72")
    narrow = run("explain rms_norm --target nvidia:sm_90").out
    assert too_wide(narrow, 72) == []
    monkeypatch.setenv("COLUMNS", "1000")
    wide = run("explain rms_norm --target nvidia:sm_90").out
    assert len(wide.splitlines()) < len(narrow.splitlines())
    assert sorted(wide.split()) == sorted(narrow.split())


def test_the_widest_columns_give_way_and_further_lines_stand_under_their_cell(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    Page().table([("acme.add", "a reason of more words than fit", "12"), ("b", "short", "3")], indent=2, right=(2,))
    Page().line("a sentence of more words than a line of forty holds", indent=2)
    assert capsys.readouterr().out == (
        "  acme.add  a reason of more words    12\n"
        "            than fit\n"
        "  b         short                      3\n"
        "  a sentence of more words than a line\n"
        "    of forty holds\n"
    )


def test_a_word_is_never_broken(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    Page().line(f"see /{'p' * 40}/plugin.yaml for it")
    assert capsys.readouterr().out == f"see\n  /{'p' * 40}/plugin.yaml\n  for it\n"
