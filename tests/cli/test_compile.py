"""``portakernel compile``."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("triton")

from portakernel.cli import main

pytestmark = pytest.mark.usefixtures("forked_workers")


def test_it_compiles_what_is_claimed_and_says_what_is_not(capsys):
    given = ["compile", "--op", "add", "--plugin", "triton", "--target", "amd:gfx1030", "--target", "nvidia:sm_90"]
    assert main([*given, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["interrupted"] is False
    found = {outcome["target"]: outcome for outcome in answer["outcomes"]}
    assert (found["amd:gfx1030"]["verdict"], found["amd:gfx1030"]["functions"]) == ("unclaimed", [])
    assert found["amd:gfx1030"]["reason"] == "claims no call on amd:gfx1030; nothing was compiled"
    assert found["nvidia:sm_90"]["verdict"] in ("native", "compiles")
    assert {function["function"] for function in found["nvidia:sm_90"]["functions"]} == {"add._add"}
    assert main(given) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "Compiled, not run"
    assert lines[2].split()[:3] == ["kernel", "target", "verdict"]
    assert [line.split()[:3] for line in lines[3:]] == [
        ["triton.add", "amd:gfx1030", "unclaimed"],
        ["triton.add", "nvidia:sm_90", found["nvidia:sm_90"]["verdict"]],
    ]


def test_it_ends_with_1_where_nothing_is_claimed(capsys):
    assert main(["compile", "--op", "add", "--plugin", "triton", "--target", "amd:gfx1030"]) == 1
    assert "unclaimed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--op", "add"], "compile: give one --target or more, such as --target amd:gfx942"),
        (["--target", "acme:gfx9999"], "unknown vendor 'acme'"),
        (["--plugin", "torch", "--target", "nvidia:sm_90"], "these are: cutlass, "),
        (["--plugin", "cutlass", "--op", "add", "--target", "nvidia:sm_90"], "it has them for linear_act, scaled_mm"),
    ],
)
def test_bad_input_is_refused_with_what_to_do(capsys, given, message):
    assert main(["compile", *given]) == 2
    assert message in capsys.readouterr().err
