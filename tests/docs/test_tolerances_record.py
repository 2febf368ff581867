"""How close kernels come to what is allowed, as docs/tolerances.json keeps it and docs/tolerances.md shows it."""

from __future__ import annotations

import pytest
from portakernel_pages import tolerances
from portakernel_pages.tolerances import CPU, Reached, measured, page, recorded, written

from portakernel.contracts import own_contracts


def reached(device, worst, dtype="float32"):
    return Reached("add", "forward", dtype, 0.5, worst, "acme.add", device, "2026-11-24", "torch 2.13.0")


def test_the_record_is_read_as_it_was_written_and_shown_by_device(tmp_path):
    path = tmp_path / "tolerances.json"
    rows = (reached(CPU, 0.25), reached("H200", 0.5), reached(CPU, 0.125, "float16"))
    path.write_text(written(rows), encoding="utf-8")
    assert set(recorded(path)) == set(rows)
    text = page(recorded(path))
    assert "| `add` | forward | 0.25 · 0.5 of 0.5 | 0.12 · – of 0.5 |" in text
    assert "CPU, 2026-11-24, torch 2.13.0; H200, 2026-11-24, torch 2.13.0" in text


def test_what_is_measured_is_the_farthest_result_of_each_op_and_dtype(monkeypatch):
    everything = tolerances.runner.check
    monkeypatch.setattr(tolerances.runner, "check", lambda *a, **k: everything(*a, op="add", **k))
    found = {(one.results, one.dtype): one for one in measured(CPU, ["reference"], 1)}
    assert found["forward", "bfloat16"].kernel == "reference.add"
    assert 0.4 < found["forward", "bfloat16"].worst <= found["forward", "bfloat16"].allowed


def test_every_op_whose_results_have_a_tolerance_in_ulp_is_recorded():
    known = {(one.op, one.results) for one in recorded()}
    for op, contract in own_contracts().items():
        if contract.tolerance.forward and contract.results:
            assert (op, "forward") in known


def test_nothing_recorded_is_further_off_than_what_is_allowed():
    assert [one for one in recorded() if one.worst > one.allowed] == []


def test_a_kernel_that_fails_ends_the_measurement(monkeypatch):
    failed = type("Failed", (), {"status": "failed", "__str__": lambda _: "acme.add is wrong"})()
    monkeypatch.setattr(tolerances.runner, "check", lambda *_, **__: iter([failed]))
    with pytest.raises(SystemExit, match=r"acme\.add is wrong"):
        measured(CPU, ["torch"], 1)
