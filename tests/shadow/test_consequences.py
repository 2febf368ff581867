"""What follows from a wrong result: the next kernel serves, explain says why, and tensors are written where told."""

from __future__ import annotations

import datetime
import re
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from portakernel.claims.capability import ReasonCode
from portakernel.claims.request import Phase
from portakernel.config import Config
from portakernel.contracts import contract
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.deciding.measurements import Measurements
from portakernel.errors import NoKernelError, ShadowWarning
from portakernel.shadow.evidence import MOST_FILES
from portakernel.tensors.units import units_of
from portakernel.tuning.key import Key, Kind, Regime
from portakernel.tuning.record import Entry, Record, Verdict
from portakernel.tuning.sources import contract_digest, source_digest
from portakernel.tuning.store import Writer, folder_of, read

X, Y = torch.arange(32.0).reshape(4, 8), torch.ones(4, 8)


def found_wrong(planted: Any, call: Any, **wishes: Any) -> str:
    """The warning of the sample that finds the planted kernel wrong."""
    planted.right = 0
    call()
    sampler = planted.sampler(**wishes)
    sampler.turn()
    call()
    with pytest.warns(ShadowWarning) as warned:
        sampler.check_waiting()
    (message,) = warned
    return str(message.message)


def chosen(planted: Any, *tensors: Any) -> str:
    return planted.caller("add").explain(tensors, (), Phase.INFERENCE).chosen.name


def test_demoted_the_next_kernel_serves_and_explain_says_why(planted):
    text = found_wrong(planted, lambda: planted.add(X, Y), on_mismatch="demote")
    assert text.endswith("; the next kernel serves such calls from now on, as `portakernel.explain` shows")
    assert torch.equal(planted.add(X, Y), X + Y)  # no FallbackWarning either: it was warned of
    decision = planted.caller("add").explain((X, Y), (), Phase.INFERENCE)
    (reason,) = decision.candidate("planted.add").rejections
    assert decision.chosen.name == "torch.add"
    assert reason.code is ReasonCode.SHADOW_MISMATCH
    assert reason.text.startswith("shadow verification found sum: ")
    served = [use for use in planted.caller("add").table.counts() if use.kernel == "torch.add"]
    assert [use.fallback for use in served] == [("planted.add",)]


def test_it_serves_no_call_of_that_kind_whatever_the_sizes_and_other_ops_as_before(planted):
    found_wrong(planted, lambda: planted.add(X, Y), on_mismatch="demote")
    assert [chosen(planted, X[:rows], Y[:rows]) for rows in (1, 2, 4)] == ["torch.add"] * 3
    planted.right = 1000
    planted.rms_norm(X, torch.ones(8))
    assert planted.placement("rms_norm").kernel.name == "planted.rms_norm"


def test_backward_is_chosen_as_before(planted):
    found_wrong(planted, lambda: planted.rms_norm(X, torch.ones(8)), on_mismatch="demote")
    request = planted.caller("rms_norm").arguments.request((X, torch.ones(8)), (1e-6, 0.0), Phase.INFERENCE)
    demoted = {phase: set(planted.dispatcher.demotions.of(replace(request, phase=phase))) for phase in Phase}
    assert demoted == {
        phase: set() if phase is Phase.BACKWARD else {"planted.rms_norm"} for phase in Phase
    }  # fmt: skip


def test_a_cleared_table_leaves_it_demoted(planted):
    found_wrong(planted, lambda: planted.add(X, Y), on_mismatch="demote")
    planted.caller("add").table.clear()
    assert torch.equal(planted.add(X, Y), X + Y)


def test_asked_for_strictly_it_is_an_error_with_the_reason(planted):
    found_wrong(planted, lambda: planted.add(X, Y), on_mismatch="demote")
    with pytest.raises(NoKernelError, match=r"(?s)planted\.add +shadow_mismatch +shadow verification found sum: "):
        planted.add(X, Y, kernel="planted.add")


def test_a_compiled_graph_that_may_hold_it_is_traced_anew(planted):
    planted.dispatcher.refresh_trace_token()
    before = planted.dispatcher.trace_token
    found_wrong(planted, lambda: planted.add(X, Y), on_mismatch="demote")
    assert planted.dispatcher.trace_token not in ("", before)


def test_reported_it_goes_on_serving(planted):
    found_wrong(planted, lambda: planted.add(X, Y))
    assert chosen(planted, X, Y) == "planted.add"
    assert not torch.equal(planted.add(X, Y), X + Y)


def test_tensors_of_a_wrong_call_are_written_to_the_folder_that_is_named(planted, tmp_path):
    folder = tmp_path / "made" / "wrong"
    text = found_wrong(planted, lambda: planted.add(X, Y), folder=str(folder))
    (file,) = folder.iterdir()
    assert text.endswith(f"; its tensors are in {file}")
    assert file.name.startswith("planted.add.")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    held = torch.load(file, weights_only=True)
    assert (held["op"], held["kernel"], held["values"]) == ("add", "planted.add", {})
    assert torch.equal(held["tensors"]["x"], X)
    assert torch.equal(held["tensors"]["y"], Y)
    assert not torch.equal(held["results"][0], X + Y)
    assert held["detail"] in text


def test_nothing_is_written_without_a_folder(planted, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    found_wrong(planted, lambda: planted.add(X, Y))
    assert sorted(tmp_path.iterdir()) == before


def test_a_folder_takes_a_bounded_number_of_files(planted, tmp_path):
    folder = tmp_path / "full"
    folder.mkdir()
    for number in range(MOST_FILES):
        (folder / f"{number}.shadow.pt").touch()
    text = found_wrong(planted, lambda: planted.add(X, Y), folder=str(folder))
    assert text.endswith(f"; its tensors were not written: {folder} has {MOST_FILES} files")
    assert len([*folder.iterdir()]) == MOST_FILES


def test_a_folder_that_cannot_be_written_is_told_and_the_mismatch_too(planted, tmp_path):
    file = tmp_path / "file"
    file.touch()
    text = found_wrong(planted, lambda: planted.add(X, Y), folder=str(file / "folder"))
    assert text.startswith("planted.add gave a wrong result")
    assert text.endswith(f"; its tensors could not be written to {Path(file / 'folder')} (Not a directory)")


@pytest.fixture
def store(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / "store"
    monkeypatch.setenv("PORTAKERNEL_TUNING_DIR", str(folder))
    return folder


def another(planted: Any, store: Path) -> Any:
    """What a process that starts later decides by: the same kernels, and what the store has."""
    registry = planted.dispatcher.registry
    now = Dispatcher(registry, Config(tuning_dir=str(store)))
    now.routes.set(None, Measurements(registry, [store], Regime(Config().tuning)))
    return now


def test_where_a_store_is_named_other_processes_pass_the_kernel_over(planted, store):
    text = found_wrong(planted, lambda: planted.add(X, Y), on_mismatch="demote")
    assert text.endswith(f"; recorded in {store}")
    request = planted.caller("add").arguments.request((X[:2], Y[:2]), (), Phase.INFERENCE)
    decision = another(planted, store).decide(request)
    (reason,) = decision.candidate("planted.add").rejections
    assert decision.chosen.name == "torch.add"
    assert reason.code is ReasonCode.SHADOW_MISMATCH
    today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m")
    assert re.fullmatch(
        rf"shadow verification in another process found sum: 1 of 32 elements .*, 0\.75 ulp allowed \({today}-\d\d\)",
        reason.text,
    )
    training = another(planted, store).decide(replace(request, phase=Phase.TRAINING))
    assert training.chosen.name == "torch.add"
    other = replace(request, dtypes=dict.fromkeys(request.dtypes, "bfloat16"))
    assert [r.code for r in another(planted, store).decide(other).candidate("planted.add").rejections] == [
        ReasonCode.DTYPE
    ]


def test_a_kernel_whose_source_is_another_by_then_serves(planted, store, monkeypatch):
    found_wrong(planted, lambda: planted.add(X, Y), on_mismatch="demote")
    request = planted.caller("add").arguments.request((X, Y), (), Phase.INFERENCE)
    monkeypatch.setattr("portakernel.tuning.measured.source_digest", lambda kernel: "mended")
    assert another(planted, store).decide(request).chosen.name == "planted.add"


def test_what_was_measured_of_other_kernels_stays_in_the_store(planted, store):
    planted.right = 100
    planted.add(X, Y)
    request = planted.placement().decision.request
    kernels = planted.dispatcher.registry.for_op("add")
    kind = Kind.of(request, kernels)
    regime = Regime(Config().tuning).on("cpu")
    key = Key(kind, str(request.target), units_of(request.device), regime, dict(request.dims))
    sources = {kernel.name: source_digest(kernel) for kernel in kernels}
    timed = {
        name: Entry(source=sources[name], verdict=Verdict.RIGHT, us=(1.0, 2.0, 3.0), rounds=25)
        for name in ("planted.add", "torch.add")
    }
    before = Record(key, contract_digest(contract("add")), timed, "2026-01-01T00:00:00Z", "planted.add")
    folder = folder_of(store, key.target, key.units)
    with Writer(folder, "add") as writer:
        writer.write(before)
    planted.caller("add").table.clear()
    found_wrong(planted, lambda: planted.add(X, Y), on_mismatch="demote")
    (found,) = read(folder, "add").records.values()
    assert found.kernels["torch.add"] == timed["torch.add"]
    assert found.kernels["planted.add"].verdict is Verdict.WRONG
    assert found.at > before.at


def test_nothing_is_recorded_where_no_store_is_named_or_it_is_only_reported(planted, store, monkeypatch):
    assert "recorded" not in found_wrong(planted, lambda: planted.add(X, Y))
    monkeypatch.delenv("PORTAKERNEL_TUNING_DIR")
    assert "recorded" not in found_wrong(planted, lambda: planted.add(X, Y), on_mismatch="demote")
    assert not store.exists()


def test_a_store_that_cannot_be_written_is_told(planted, store):
    store.touch()
    text = found_wrong(planted, lambda: planted.add(X, Y), on_mismatch="demote")
    assert f"; that could not be recorded in {store} ([Errno " in text
