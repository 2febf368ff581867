"""What outputs of commands prove, how it is recorded, and what of it the matrix' rows show."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from portakernel_pages.proofs import written

from portakernel.errors import ArgumentValueError
from portakernel.matrix.page.rows import rows
from portakernel.matrix.proofs import Proof, merged, read_output, recorded
from portakernel.matrix.table import support_matrix

CIRCUMSTANCES = {"date": "2026-11-22T12:24:48+00:00", "versions": {"torch": "2.13.0", "other": "1.0"}}


@pytest.fixture
def kernels(world):
    """Kernel ``p.add``, for float32, float16 and bfloat16 on old and new of vendor ``zeta``, and the references."""
    facts = {"dtypes": {"native": ["float32", "float16", "bfloat16"]}, "source": "invented"}
    archs = {arch: {"name": arch, **facts} for arch in ("old", "new")}
    world.backend("zeta", lines=[["old", "new"]], archs=archs)
    world.plugin("p", {"targets": {"zeta": "any"}})
    return world.registry().kernels


@pytest.fixture
def read(tmp_path, kernels):
    def read_json(**output):
        path = tmp_path / "output.json"
        path.write_text(json.dumps({"circumstances": CIRCUMSTANCES, **output}), encoding="utf-8")
        return read_output(path, kernels)

    return read_json


def outcome(target, verdict, call="p.add for {} (multiple of blocks, bfloat16)"):
    return {"kernel": "p.add", "target": target, "call": call.format(target), "verdict": verdict}


def result(dtype, status="passed", device="zeta:new (zeta:0)", mode=None, aspect="forward"):
    case = f"add[a case, with a comma, x={dtype}, y={dtype}]"
    return {"kernel": "p.add", "case": case, "aspect": aspect, "status": status, "device": device, "mode": mode}


def cell(dtype, status):
    kernels = [{"kernel": "p.add", "status": status}]
    values = {"window": [3, 0]}
    return {"dtypes": {"x": dtype}, "values": values, "checked_against": "reference.add", "kernels": kernels}


def test_native_code_is_compiled_code_too_and_compiled_code_is_not_native(read):
    found = read(outcomes=[outcome("zeta:old", "compiles"), outcome("zeta:new", "native")])
    assert {(proof.target, proof.kind) for proof in found} == {
        ("zeta:old", "compiled"),
        ("zeta:new", "compiled"),
        ("zeta:new", "native"),
    }
    assert {(proof.dtypes, proof.date, proof.device) for proof in found} == {(("bfloat16",), "2026-11-22", "")}


def test_where_one_call_does_not_compile_nothing_is_proven(read):
    assert read(outcomes=[outcome("zeta:old", "native"), outcome("zeta:old", "fails")]) == ()
    assert read(outcomes=[outcome("zeta:old", "unclaimed", "")]) == ()


def test_a_checked_kernel_ran_in_the_dtypes_of_the_cases_that_passed(read):
    found = read(results=[result("bfloat16"), result("float32"), result("float16", "skipped")])
    assert found == (Proof("p.add", "zeta:new", "ran", "check", ("float32", "bfloat16"), (), "2026-11-22", "", ""),)


def test_what_the_emulator_ran_is_emulated_and_no_other_mode_proves_that(read):
    place = {"device": "zeta:new (emulated)", "mode": "emulated"}
    found = read(results=[result("bfloat16", **place), result("float16", mode="slow")])
    by = "emulated", "check --emulate", ("bfloat16",)
    assert found == (Proof("p.add", "zeta:new", *by, (), "2026-11-22", "", ""),)
    assert read(results=[result("bfloat16", **place), result("float16", "failed", aspect="purity", **place)]) == ()


def test_a_check_on_hardware_leaves_what_was_emulated(read):
    place = {"device": "zeta:new (emulated)", "mode": "emulated"}
    emulated, ran = read(results=[result("bfloat16", **place)]), read(results=[result("float32")])
    assert [proof.kind for proof in merged(emulated, ran)] == ["emulated", "ran"]


@pytest.mark.parametrize(
    "bad", [result("float16", "failed"), result("float16", "failed", aspect="purity"), result("float16", mode="slow")]
)
def test_a_failure_of_any_aspect_unproves_a_kernel_and_an_execution_mode_proves_none(read, bad):
    assert read(results=[bad]) == ()
    if bad["mode"] is None:
        assert read(results=[result("bfloat16"), bad]) == ()


def test_formats_are_those_of_the_cases(tmp_path, kernels):
    case = "scaled_mm[tensors, a=float8_e4m3fn, b=float8_e4m3fn, scale_a=float32, scale_b=float32]"
    row = {**result("float32"), "kernel": "reference.scaled_mm", "case": case}
    path = tmp_path / "output.json"
    path.write_text(json.dumps({"circumstances": CIRCUMSTANCES, "results": [row]}), encoding="utf-8")
    (proof,) = read_output(path, kernels)
    assert (proof.dtypes, proof.formats) == (("float32", "float8_e4m3fn"), ("tensor",))


def drawn(number, *names, status="passed"):
    return {**result("float32", status), "case": f"add[{', '.join((f'drawn {number}', *names))}]"}


def test_drawn_requests_that_passed_count_with_their_seed_and_say_their_dtypes_and_formats(read, kernels):
    rows = [drawn(0, "x=float16", "y=float16"), drawn(1, "x=float32"), drawn(2, "x=bfloat16", status="skipped")]
    (proof,) = read(results=rows, seed=11, drawn={"requests": 3})
    assert (proof.dtypes, proof.requests, proof.seeds) == (("float32", "float16"), 2, (11,))
    assert proof.told == "portakernel check, 2 drawn requests (seed 11), 2026-11-22"
    (alone,) = read(results=rows, seed=11, drawn={})  # `--one`, whose request has a seed of its own
    assert (alone.dtypes, alone.requests, alone.seeds) == (("float32", "float16"), 0, ())
    assert read(results=[*rows, drawn(3, "x=float16", status="failed")], seed=11, drawn={"requests": 4}) == ()
    named = "scaled_mm[drawn 4, format_a=row, format_b=block_128x128, a=float8_e4m3fn, b=float8_e5m2]"
    row = {**result("float32"), "kernel": "reference.scaled_mm", "case": named}
    (proof,) = read(results=[row], seed=11, drawn={"requests": 1})
    assert (proof.dtypes, proof.formats) == (("float8_e4m3fn", "float8_e5m2"), ("row", "block_128x128"))


def test_a_drawn_request_that_names_no_dtype_proves_nothing(read):
    assert read(results=[drawn(0)], seed=11, drawn={"requests": 1}) == ()


def test_what_several_seeds_drew_on_one_day_is_added_up_beside_the_cases(tmp_path):
    def proof(dtype, requests=0, seeds=(), date="2026-02-02"):
        return Proof("p.add", "zeta:old", "ran", "check", (dtype,), ("row",), date, "Zeta 1", "", requests, seeds)

    cases, first, second = proof("float32"), proof("float16", 5, (12,)), proof("bfloat16", 7, (11,))
    known = ()
    for new in (cases, first, second):
        known = merged(known, [new])
    (total,) = known
    assert (total.dtypes, total.requests, total.seeds) == (("float32", "float16", "bfloat16"), 12, (11, 12))
    path = tmp_path / "proofs.json"
    path.write_text(written(known), encoding="utf-8")
    assert recorded(path) == known
    assert merged(known, [cases]) == known
    for new in (first, proof("float16", 5, (13,), "2026-02-03"), replace(proof("float16", 5, (13,)), device="Zeta 2")):
        assert merged(known, [new]) == (new,)
    assert merged([cases], [replace(cases, dtypes=("float16",))]) == (replace(cases, dtypes=("float16",)),)


def test_a_benchmark_proves_what_agreed_with_the_reference(read):
    known = {**CIRCUMSTANCES, "target": "zeta:old", "device": "Zeta 1"}
    (proof,) = read(circumstances=known, cells=[cell("float16", "timed"), cell("float32", "slow")])
    assert (proof.target, proof.kind, proof.dtypes) == ("zeta:old", "ran", ("float16",))
    assert proof.told == "portakernel bench, Zeta 1, torch 2.13.0, 2026-11-22"
    assert read(circumstances=known, cells=[cell("float16", "timed"), cell("float32", "wrong")]) == ()


@pytest.mark.parametrize(("text", "why"), [("{}", r"this has the keys \(none\)"), ("nothing", "it cannot be read")])
def test_other_files_are_refused(tmp_path, kernels, text, why):
    path = tmp_path / "other.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ArgumentValueError, match=rf"other\.json: needs what `portakernel compile`.*{why}"):
        read_output(path, kernels)


def test_a_record_reads_as_it_was_written_and_new_proofs_replace_those_of_the_same_command(tmp_path):
    old = Proof("p.add", "zeta:old", "ran", "check", ("float32",), (), "2026-01-01")
    elsewhere = Proof("p.add", "zeta:new", "ran", "check", ("float32",), (), "2026-01-01")
    benched = Proof("p.add", "zeta:old", "ran", "bench", ("float32",), ("row",), "2026-01-01", "Zeta 1", "torch 2.11.0")
    new = Proof("p.add", "zeta:old", "ran", "check", ("float16",), (), "2026-02-02")
    path = tmp_path / "proofs.json"
    path.write_text(written(merged([old, elsewhere, benched], [new])), encoding="utf-8")
    assert set(recorded(path)) == {elsewhere, benched, new}


def test_the_record_of_our_own_kernels_is_as_it_would_be_written():
    from portakernel.matrix.proofs import RECORD

    assert RECORD.read_text(encoding="utf-8") == written(recorded())


def test_archs_share_a_row_where_the_same_is_claimed_and_proven(world, kernels):
    (support,) = support_matrix(world.registry(), op="add", plugin="p")
    (row,) = rows(support)
    assert (row.names, row.proofs) == (("old", "new"), ())
    proof = Proof("p.add", "zeta:old", "ran", "check", ("float32",))
    apart = rows(support, [proof])
    assert [(row.names, row.proofs) for row in apart] == [(("old",), (proof,)), (("new",), ())]
    (together,) = rows(support, [proof, Proof("p.add", "zeta:new", "ran", "check", ("float32",))])
    assert (together.names, len(together.proofs)) == (("old", "new"), 1)


def test_a_proof_of_what_is_not_claimed_is_left_out(world, kernels):
    (support,) = support_matrix(world.registry(), op="add", plugin="p")
    gone = [
        Proof("p.add", "zeta:gone", "ran", "check", ("float32",)),
        Proof("p.gone", "zeta:old", "ran", "check", ("float32",)),
        Proof("p.add", "zeta:old", "ran", "check", ("float64",)),
    ]
    assert [row.proofs for row in rows(support, gone)] == [()]
    (old, _) = rows(support, [Proof("p.add", "zeta:old", "ran", "check", ("float64", "float32"))])
    assert [proof.dtypes for proof in old.proofs] == [("float32",)]
