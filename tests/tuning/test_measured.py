"""Records become choices: which ones count, where they hold, and what is said where none does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from portakernel.contracts import contract
from portakernel.deciding.asking import ask
from portakernel.registry.kernel import Kernel, Priority, PriorityRule
from portakernel.runtime import dispatcher
from portakernel.tuning.key import Key, Kind, Regime
from portakernel.tuning.measured import Measured, measured_choices, places
from portakernel.tuning.record import Entry, Record, Verdict
from portakernel.tuning.sources import contract_digest, of_files, source_digest
from portakernel.tuning.store import Writer, folder_of
from portakernel.tuning.undecided import by_reason
from portakernel.words.target import Target

TARGET, UNITS = Target("nvidia", "sm_90"), 132
FIRST, SECOND, OP = "triton.rms_norm", "inductor.rms_norm", "rms_norm"
REGISTRY = dispatcher().registry
KERNELS = [kernel for kernel in REGISTRY.for_op(OP) if kernel.name in (FIRST, SECOND, "reference.rms_norm")]


def key(rows: int, **more: Any) -> Key:
    shapes = {"x": (rows, 4096), "weight": (4096,)}
    request = ask(contract(OP), TARGET, dtypes="bfloat16", shapes=shapes)
    return replace(Key(Kind.of(request, KERNELS), str(TARGET), UNITS, Regime.GRAPH_COLD, dict(request.dims)), **more)


def record(rows: int, ratio: float | None = 0.9, **more: Any) -> Record:
    """The second kernel takes ``ratio`` of the time of the first; None: nothing is faster."""
    known = {kernel.name: source_digest(kernel) for kernel in KERNELS}
    shown = 1.0 if ratio is None else ratio
    against = {FIRST: (shown - 0.005, shown, shown + 0.005)}
    us = (10.0 * shown, 10.0 * shown, 10.0 * shown)
    kernels = {
        FIRST: Entry(source=known[FIRST], verdict=Verdict.RIGHT, us=(10.0, 10.0, 10.0), rounds=25),
        SECOND: Entry(source=known[SECOND], verdict=Verdict.RIGHT, us=us, rounds=25, against=against),
    }
    fields = {"at": "2026-11-27T00:00:00Z", "default": FIRST, "driver": "580", "torch": "2.11", **more}
    return Record(fields.pop("key", key(rows)), contract_digest(contract(OP)), fields.pop("kernels", kernels), **fields)


def written(root: Path, *records: Record) -> Path:
    for one in records:
        with Writer(folder_of(root, one.key.target, one.key.units), OP) as writer:
            writer.write(one)
    return root


def measured(*roots: Path, kernels: list[Kernel] = KERNELS) -> Measured:
    return Measured(roots, OP, str(TARGET), UNITS, Regime.GRAPH_COLD, kernels, REGISTRY.spaces)


def chosen(found: Measured, rows: int) -> str | None:
    one = key(rows)
    choice = found.choices.find(one.kind, one.dims)
    return choice.kernel if choice is not None else None


def winners(found: Measured, *rows: int) -> Mapping[int, str | None]:
    return {size: chosen(found, size) for size in rows}


def test_a_winner_holds_between_points_that_agree_and_is_carried_no_farther(tmp_path):
    found = measured(written(tmp_path, record(64), record(256), record(1024, None), record(2048, None)))
    assert winners(found, 63, 64, 100, 256) == {63: None, 64: SECOND, 100: SECOND, 256: SECOND}
    assert winners(found, 257, 1024, 1500, 2049) == {257: None, 1024: FIRST, 1500: FIRST, 2049: None}
    choice = found.choices.find(key(100).kind, key(100).dims)
    assert choice is not None
    assert choice.where == "what was measured at M 64 to 256, N 4096"
    assert choice.why == "0.90 of the time of what priorities pick, at most 0.91"
    kept = found.choices.find(key(1024).kind, key(1024).dims)
    assert kept is not None
    assert kept.why == "no other is faster by more than 2 %"


def test_notes_say_why_nothing_decides(tmp_path):
    busy, other = record(8192, busy=True), record(64, key=key(64, units=114))
    found = measured(written(tmp_path, record(64), record(256), record(1024, None), busy, other))
    one = key(64)
    assert found.notes(one.kind, key(512).dims) == (f"not measured: M 256 ({SECOND}) and 1024 ({FIRST}) disagree",)
    assert found.notes(one.kind, busy.key.dims) == (
        "measured, and not used: others used the device while it was measured",
    )
    assert found.notes(one.kind, {"M": 3, "N": 5}) == (
        "no sizes near it were measured; the nearest is the record of M 64, N 4096: M 3 is not 64; N 5 is not 4096",
    )
    assert found.notes(one.kind, {"M": 8191, "N": 5}) == (
        (
            "no sizes near it were measured; the nearest is the record of M 8192, N 4096 (not used: others used the"
            " device while it was measured): M 8191 is not 8192; N 5 is not 4096"
        ),
    )
    nothing = "no call of this kind was measured on such a device"
    assert found.notes(replace(one.kind, phase="training"), one.dims) == (
        f"{nothing}; the nearest is the record of M 64, N 4096: phase: inference there, this call training",
    )
    assert found.notes(one.kind, one.dims, driver="580", torch="2.11") == ()


def test_another_driver_or_torch_makes_it_stale_which_is_said_and_used(tmp_path):
    found = measured(written(tmp_path, record(64)))
    assert chosen(found, 64) == SECOND
    assert found.notes(key(64).kind, key(64).dims, driver="590", torch="2.12") == (
        "measured with driver 580, not 590: `portakernel tune --stale` repeats it",
        "measured with torch 2.11, not 2.12: `portakernel tune --stale` repeats it",
    )


def test_another_number_of_units_is_shown_and_not_used(tmp_path):
    found = measured(written(tmp_path, record(64, key=key(64, units=114))))
    assert not found.choices
    assert found.notes(key(64).kind, key(64).dims) == ("measured on nvidia:sm_90 with 114 units, not 132: not used",)
    assert places([tmp_path]) == (("nvidia:sm_90", 114),)


def test_a_regime_that_answers_for_another_says_so_where_that_was_asked_for():
    for asked in Regime:
        assert asked.on("nvidia").instead_of(asked, "a card") == ""
        assert asked.on("cpu").instead_of(None, "a CPU") == ""
    assert Regime.EAGER_WARM.on("cpu").instead_of("eager/warm", "a CPU") == ""
    assert Regime.GRAPH_WARM.on("cpu").instead_of("graph/warm", "a CPU") == (
        "a CPU has no graphs, which graph/warm would time: eager/warm is what counts there"
    )


def test_units_of_a_cpu_are_named(tmp_path):
    cpu = replace(key(64), target="cpu:x86_64", units=8, regime=Regime.EAGER_COLD)
    with Writer(folder_of(tmp_path, cpu.target, 8), OP) as writer:
        writer.write(record(64, key=cpu))
    registry = dispatcher().registry
    here = Measured([tmp_path], OP, cpu.target, 4, Regime.EAGER_COLD, registry.for_op(OP), registry.spaces)
    (note,) = here.notes(cpu.kind, cpu.dims)
    assert note == (
        "measured on cpu:x86_64 with 8 units (processors that torch's threads use at once), not 4: not used"
    )


def test_a_user_s_own_records_go_before_those_that_ship_unless_they_decide_nothing(tmp_path):
    shipped = written(tmp_path / "shipped", record(64), record(512))
    own = written(tmp_path / "own", record(64, None), record(512, busy=True))
    assert winners(measured(own, shipped), 64, 512) == {64: FIRST, 512: SECOND}
    assert winners(measured(shipped, own), 64, 512) == {64: SECOND, 512: SECOND}


def test_a_kernel_that_changed_is_void_and_bridges_nothing_nor_breaks_it(tmp_path):
    old = record(128)
    entries = {name: entry.model_copy(update={"source": "old"}) for name, entry in old.kernels.items()}
    found = measured(written(tmp_path, record(64), replace(old, kernels=entries), record(256)))
    assert winners(found, 64, 128, 256) == {64: SECOND, 128: SECOND, 256: SECOND}
    partly = replace(old, kernels={**old.kernels, FIRST: entries[FIRST]})
    found = measured(written(tmp_path / "partly", record(64), partly, record(256)))
    assert winners(found, 64, 100, 128, 256) == {64: SECOND, 100: None, 128: None, 256: SECOND}
    assert found.notes(key(128).kind, key(128).dims) == (
        f"measured, and not used: {FIRST} has changed since it was measured",
    )


def test_records_of_another_contract_or_another_target_s_in_its_folder_are_not_used(tmp_path):
    foreign = record(64, key=key(64, target="nvidia:sm_80"))
    with Writer(folder_of(tmp_path, str(TARGET), UNITS), OP) as writer:
        writer.write(foreign)
        writer.write(replace(record(256), contract="other"))
    assert not measured(tmp_path).choices


def test_a_kernel_that_came_later_and_goes_first_is_to_be_measured_first(tmp_path):
    written(tmp_path, record(64))
    first = next(kernel for kernel in KERNELS if kernel.name == FIRST)
    new = replace(first, name="triton.newest", priority=Priority((PriorityRule(1000),)))
    assert chosen(measured(tmp_path, kernels=[*KERNELS, new]), 64) is None
    low = replace(new, priority=Priority((PriorityRule(1),)))
    assert chosen(measured(tmp_path, kernels=[*KERNELS, low]), 64) == SECOND
    absent = replace(new, requires={"no_such_module_here": ">=1"})
    assert chosen(measured(tmp_path, kernels=[*KERNELS, absent]), 64) == SECOND
    elsewhere = replace(new, variants=tuple((n, replace(c, targets={})) for n, c in new.variants))
    assert chosen(measured(tmp_path, kernels=[*KERNELS, elsewhere]), 64) == SECOND


def test_a_default_that_is_no_longer_here_leaves_the_rest_undecided_or_kept(tmp_path):
    written(tmp_path, record(64))
    assert chosen(measured(tmp_path, kernels=[k for k in KERNELS if k.name != FIRST]), 64) == SECOND


def test_calls_of_another_kind_have_choices_of_their_own(tmp_path):
    other = replace(key(64).kind, dtypes={"x": "float16", "weight": "float16"})
    written(tmp_path, record(64))
    assert measured(tmp_path).choices.find(other, key(64).dims) is None


def test_the_function_gives_the_choices(tmp_path):
    written(tmp_path, record(64))
    found = measured_choices([tmp_path], OP, str(TARGET), UNITS, Regime.GRAPH_COLD, KERNELS, REGISTRY.spaces)
    assert [choice.kernel for choice in found.all] == [SECOND]
    assert not measured_choices([tmp_path], OP, str(TARGET), UNITS, Regime.EAGER_COLD, KERNELS, REGISTRY.spaces)


def test_until_the_winner_is_built_the_fastest_of_the_others_stands_in(tmp_path):
    third = "hip.rms_norm_nvidia"
    kernels = [kernel for kernel in REGISTRY.for_op(OP) if kernel.name in (FIRST, SECOND, third)]
    before = record(64)
    entry = Entry(
        source=source_digest(REGISTRY.kernels[third]),
        verdict=Verdict.RIGHT,
        us=(9.5, 9.5, 9.5),
        rounds=25,
        against={FIRST: (0.945, 0.95, 0.955)},
    )
    for others, ready in (({third: entry}, third), ({}, FIRST)):
        root = tmp_path / (ready or "none")
        found = measured(written(root, replace(before, kernels={**before.kernels, **others})), kernels=kernels)
        choice = found.choices.find(key(64).kind, key(64).dims)
        assert choice is not None
        assert choice.kernels == (SECOND, ready)


def test_what_was_measured_in_another_regime_alone_is_said(tmp_path):
    written(tmp_path, record(64, key=key(64, regime=Regime.GRAPH_WARM)))
    found = measured(tmp_path)
    assert found.notes(key(64).kind, key(64).dims) == (
        "regime: it was measured in graph/warm alone, and graph/cold decides",
    )
    assert found.undecided == {"measured in graph/warm, and graph/cold decides": 1}


def test_what_decides_nothing_is_counted_by_reason(tmp_path):
    first = record(64).kernels[FIRST]
    versions = first.model_copy(update={"source": of_files(first.source) + "000000"})
    changed = first.model_copy(update={"source": "0" * 16})
    found = measured(
        written(
            tmp_path,
            record(1, kernels={FIRST: versions}),
            record(8, kernels={FIRST: versions}),
            record(64),
            record(512, kernels={FIRST: changed}),
            record(4096, busy=True),
            replace(record(8192), contract="other"),
        )
    )
    assert found.decided == 1
    other = f"{FIRST}: a module that it requires has another version here than where it was measured"
    assert found.undecided == {
        other: 2,
        f"{FIRST} has changed since it was measured": 1,
        "others used the device while it was measured": 1,
        f"the contract of {OP} has changed since it was measured": 1,
    }
    told = list(by_reason(found.undecided + Counter({other.replace(FIRST, SECOND): 3}), REGISTRY.kernels))
    assert told[0][0] == 5
    assert told[0][1].startswith(f"{', '.join(sorted((FIRST, SECOND)))}: a module that it requires has another version")
    assert len(told) == 4


def test_why_nothing_decides_is_one_word(tmp_path):
    entries = {name: entry.model_copy(update={"source": "old"}) for name, entry in record(1).kernels.items()}
    wrong = {
        name: entry.model_copy(update={"verdict": Verdict.WRONG, "us": None, "against": {}})
        for name, entry in record(1).kernels.items()
    }
    warm = replace(key(64).kind, phase="training")
    found = measured(
        written(
            tmp_path,
            record(64), record(256), record(1024, None),
            record(8192, busy=True),
            record(32768, kernels=entries),
            record(131072, kernels=wrong),
            record(64, key=key(64, kind=warm, regime=Regime.EAGER_COLD)),
            record(64, key=key(64, kind=replace(warm, phase="backward"), units=114)),
        )
    )  # fmt: skip
    kind, rows = key(64).kind, (64, 100, 1024, 512, 8192, 32768, 131072, 3)
    assert {size: found.silence(kind, key(size).dims) for size in rows} == {
        64: "", 100: "", 1024: "", 512: "gap", 8192: "busy", 32768: "stale", 131072: "open", 3: "gap",
    }  # fmt: skip
    of_phase = {phase: found.silence(replace(kind, phase=phase), key(64).dims) for phase in ("training", "backward")}
    assert of_phase == {"training": "regime", "backward": "near"}
    assert found.silence(replace(kind, phase="forward_ad"), key(64).dims) == "no_record"
    changed = replace(record(64), contract="another")
    assert measured(written(tmp_path / "changed", changed)).silence(kind, key(64).dims) == "stale"
