"""The records that ship: none of what they measured has changed since, and what changes is named."""

from __future__ import annotations

from pathlib import Path

from portakernel.contracts import contract
from portakernel.runtime import dispatcher
from portakernel.tuning.key import Key, Kind, Regime
from portakernel.tuning.measured import Measured
from portakernel.tuning.place import defaults_root
from portakernel.tuning.record import Entry, Record, Verdict
from portakernel.tuning.sources import contract_digest, of_files, source_digest
from portakernel.tuning.store import Writer, folder_of, folders, ops_in, read, survey
from portakernel.tuning.voided import voided

KERNELS = dispatcher().registry.kernels
NAME = "triton.softmax"


def stored(root: Path, *, op: str = "softmax", name: str = NAME, source: str = "", digest: str = "") -> Path:
    key = Key(Kind(op, "inference", {"x": "bfloat16"}), "nvidia:sm_90", 132, Regime.GRAPH_COLD, {"M": 1, "N": 1})
    entry = Entry(source=source or source_digest(KERNELS[NAME]), verdict=Verdict.RIGHT)
    record = Record(key, digest or contract_digest(contract("softmax")), {name: entry}, "2026-11-27T00:00:00Z")
    with Writer(folder_of(root, key.target, key.units), op) as writer:
        writer.write(record)
    return root


def test_nothing_that_the_shipped_records_measured_has_changed_since():
    """Run `portakernel tune` on such a device for what is named here, and put its records in their place."""
    assert list(voided(defaults_root(), KERNELS)) == []
    assert not survey(defaults_root()).passed_over


def test_every_shipped_record_is_read_as_a_choice_or_with_why_it_is_none():
    """Sizes that a parameter's value makes, as those of ``moe_route`` are, have no dimension to hold between."""
    registry = dispatcher().registry
    for folder in folders(defaults_root()):
        for op in ops_in(folder):
            found = Measured(
                [defaults_root()],
                op,
                "nvidia:sm_90",
                132,
                Regime.GRAPH_COLD,
                registry.for_op(op),
                registry.spaces,
            )
            assert found.decided + found.undecided.total() == len(read(folder, op).records), op


def test_what_has_changed_is_named(tmp_path):
    assert list(voided(stored(tmp_path / "same"), KERNELS)) == []
    found = list(voided(stored(tmp_path / "source", source="0" * 16), KERNELS))
    assert found == [f"nvidia.sm_90-132: {NAME} has changed since it was measured"]
    found = list(voided(stored(tmp_path / "contract", digest="0" * 16), KERNELS))
    assert found == ["nvidia.sm_90-132: the contract of softmax has changed since it was measured"]
    found = list(voided(stored(tmp_path / "op", op="gone"), KERNELS))
    assert found == ["nvidia.sm_90-132: there is no op gone any more"]
    found = list(voided(stored(tmp_path / "kernel", name="acme.gone"), KERNELS))
    assert found == ["nvidia.sm_90-132: there is no kernel acme.gone any more"]


def test_another_version_of_what_is_required_is_no_change_of_the_code(tmp_path):
    source = source_digest(KERNELS[NAME])
    other = of_files(source) + "0" * (len(source) - len(of_files(source)))
    assert other != source
    assert list(voided(stored(tmp_path, source=other), KERNELS)) == []
