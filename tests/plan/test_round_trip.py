"""What is written as a plan is what is read, and the kinds of calls in it are those that calls have."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from portakernel.claims.request import Phase, Request
from portakernel.contract import Contract
from portakernel.contracts import contract, own_contracts
from portakernel.deciding.asking import ask
from portakernel.errors import ArgumentTypeError, ArgumentValueError
from portakernel.plan import Place, read_form, read_plan
from portakernel.plan.boxes import LARGEST, plain
from portakernel.plan.export import make_plan
from portakernel.plan.pins import SourceOf
from portakernel.plan.plan import MadeWith
from portakernel.plan.writing import plan_text
from portakernel.registry.registry import Registry
from portakernel.tuning.choices import Choice, Choices
from portakernel.tuning.key import Kind, Regime
from portakernel.words.target import Target

H200 = Place("nvidia:sm_90", 132)
WORDS = ("4.4 µs, 12 % below triton.rms_norm", "", "a: b # c, {d} \\ \"e\" 'f'", "true", "12e3")


def requests(described: Contract, draw: random.Random) -> Iterator[Request]:
    """Calls of an op in words: of each of its cases one, with dtypes that it accepts, and memory that is not plain."""
    for case in described.cases:
        values = {name: described.value(name, value) for name, value in case.parameters.items()}
        made = described.at(values)
        dtypes: dict[str, str] = {}
        for tensor in made.tensors:
            if not tensor.optional or tensor.name in case.present:
                dtypes[tensor.name] = draw.choice(made.accepted_dtypes(tensor.name, dtypes))
        facts = {f"{name}.alignment": draw.choice((1, 2, 8, 16)) for name in list(dtypes)[:1]}
        facts |= {f"{name}.contiguous": draw.random() < 0.7 for name in list(dtypes)[:1]}
        phase = draw.choice((Phase.INFERENCE, Phase.TRAINING, Phase.BACKWARD))
        try:
            yield ask(described, Target.parse(H200.target), dtypes=dtypes, values=values, facts=facts, phase=phase)
        except (ArgumentTypeError, ArgumentValueError):  # dtypes that do not go together
            continue


def bounds(described: Contract, draw: random.Random) -> dict[str, tuple[int, int]]:
    found = {}
    for name in described.dims:
        low, high = sorted(draw.choice((0, 1, 17, 512, 4096, 1 << 40, LARGEST)) for _ in range(2))
        if draw.random() < 0.8:
            found[name] = (low, draw.choice((low, high)))
    return found


def choices(registry: Registry, op: str, seed: int) -> list[Choice]:
    draw, described, kernels = random.Random(seed), contract(op), registry.for_op(op)
    return [
        Choice(draw.choice(kernels).name, Kind.of(request, kernels), bounds(described, draw), "x", draw.choice(WORDS))
        for request in requests(described, draw)
        for _ in range(2)
    ]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("op", own_contracts())
def test_choices_that_are_written_are_read_as_they_were(
    registry: Registry, source_of: SourceOf, write: Callable[..., Path], op: str, seed: int
) -> None:
    made = choices(registry, op, seed)
    assert made
    plan = make_plan({H200: made}, registry, regime=Regime.EAGER_WARM, source_of=source_of)
    read = read_plan(write(plan_text(plan)), registry, here=[H200.target], source_of=source_of)
    assert (read.pins, read.lock, read.regime, read.made_with) == (plan.pins, plan.lock, plan.regime, {})
    assert sorted(map(_shown, read.parts[H200][op])) == sorted(map(_shown, plan.parts[H200][op]))
    assert read.digest == plan.digest
    assert plan_text(read) == plan_text(plan)
    found = read.choices(op, H200)
    draw, wanted = random.Random(seed), Choices(made)
    for choice in made:
        sizes = {name: draw.choice(choice.bounds.get(name, (0, LARGEST))) for name in contract(op).dims}
        decided, first = found.find(choice.kind, sizes), wanted.find(choice.kind, sizes)
        assert decided is not None
        assert first is not None
        assert (decided.kernel, decided.kind) == (first.kernel, first.kind)


def _shown(entry: Any) -> tuple[Any, ...]:
    return (repr(entry.to_data()), " ".join(entry.comment.split()))


def test_one_dtype_stands_for_the_tensors_that_share_it(registry: Registry, source_of: SourceOf) -> None:
    kernels = registry.for_op("rms_norm")
    texts = []
    for dtypes in ("bfloat16", {"x": "bfloat16", "weight": "float32"}):
        asked = ask(contract("rms_norm"), Target.parse(H200.target), dtypes=dtypes)
        choice = Choice("triton.rms_norm", Kind.of(asked, kernels), {"M": (1, 512), "N": (4096, 4096)}, "", "4.4 µs")
        texts.append(plan_text(make_plan({H200: [choice]}, registry, source_of=source_of)).splitlines()[-2])
    assert texts == [
        "      - {dtype: bfloat16, M: 1..512, N: 4096, use: triton.rms_norm}  # 4.4 µs",
        "      - {dtypes: {x: bfloat16, weight: float32}, M: 1..512, N: 4096, use: triton.rms_norm}  # 4.4 µs",
    ]


def test_a_feature_is_read_as_a_call_has_it(
    registry: Registry, source_of: SourceOf, write: Callable[..., Path]
) -> None:
    kernels = registry.for_op("rms_norm")
    asked = ask(contract("rms_norm"), Target.parse(H200.target), dtypes="float16", values={"weight_offset": 1.0})
    kind = Kind.of(asked, kernels)
    plan = make_plan({H200: [Choice("triton.rms_norm", kind, {}, "")]}, registry, source_of=source_of)
    text = (
        plan_text(plan)
        .replace(plan.digest, "")
        .replace("digest: ", "")
        .replace("weight_offset: 1.0", "weight_offset: 1")
    )
    read = read_plan(write(text), registry, here=[H200.target], source_of=source_of)
    assert read.choices("rms_norm", H200).find(kind, {"M": 3, "N": 5}) is not None
    assert not read.choices("rms_norm", (H200.target, 114))


def test_a_small_float_is_a_number_for_yaml_too(
    registry: Registry, source_of: SourceOf, write: Callable[..., Path]
) -> None:
    kind = Kind("cross_entropy", "inference", {"logits": "float32", "target": "int64"}, {}, {"label_smoothing": 1e-05})
    plan = make_plan({H200: [Choice("reference.cross_entropy", kind, {}, "")]}, registry, source_of=source_of)
    assert "features: {label_smoothing: 1.0e-05}" in plan_text(plan)
    read = read_plan(write(plan_text(plan)), registry, here=[H200.target], source_of=source_of)
    assert read.choices("cross_entropy", H200).all[0].kind == kind


def test_the_digest_is_of_decisions_and_sources_alone(
    registry: Registry, source_of: SourceOf, changed: dict[str, str], write: Callable[..., Path]
) -> None:
    made = choices(registry, "rms_norm", 5)

    def digest(several: list[Choice], **options: Any) -> str:
        return make_plan({H200: several}, registry, source_of=source_of, **options).digest

    whole = digest(made)
    retold = [replace(choice, why="9.9 µs", where="elsewhere") for choice in made]
    assert digest(retold, made_with={H200: MadeWith("580", "2.13")}, regime=Regime.EAGER_COLD) == whole
    text = plan_text(make_plan({H200: made}, registry, source_of=source_of))
    assert read_form(write("# said\n" + text)).digest == whole
    assert digest(made, lock="everything") != whole
    assert digest([replace(made[0], bounds={"M": (1, 2)}), *made[1:]]) != whole
    changed[made[0].kernel] = "!"
    assert digest(made) != whole


def test_of_two_choices_that_cover_a_call_the_first_is_written(registry: Registry, source_of: SourceOf) -> None:
    kind = Kind("softmax", "inference", {"x": "float16"})
    first = Choice("triton.softmax", kind, {"M": (10, 20), "N": (1, 100)}, "")
    second = Choice("torch.softmax", kind, {"M": (1, 30)}, "")
    plan = make_plan({H200: [first, second]}, registry, source_of=source_of)
    found = plan.choices("softmax", H200)
    for m in range(35):
        for n in (0, 1, 100, 101):
            wanted = first if first.covers({"M": m, "N": n}) else second if second.covers({"M": m, "N": n}) else None
            decided = found.find(kind, {"M": m, "N": n})
            assert (decided and decided.kernel) == (wanted and wanted.kernel)
            assert sum(choice.covers({"M": m, "N": n}) for choice in found.all) <= 1


def test_the_parts_of_other_targets_stay_as_they_are(
    registry: Registry, source_of: SourceOf, changed: dict[str, str], write: Callable[..., Path]
) -> None:
    kind = Kind("softmax", "inference", {"x": "float16"})
    other = Place("amd:gfx942", 304)
    old = make_plan({other: [Choice("torch.softmax", kind, {}, "")]}, registry, source_of=source_of)
    both = make_plan({H200: [Choice("triton.softmax", kind, {}, "")]}, registry, beside=old, source_of=source_of)
    assert both.parts[other] == old.parts[other]
    assert list(both.pins) == ["torch.softmax", "triton.softmax"]
    changed["torch.softmax"] = "!"
    with pytest.raises(ArgumentValueError, match=r"^plan: torch.softmax has the source \w+ here, and \w+ in the other"):
        make_plan({H200: [Choice("torch.softmax", kind, {}, "")]}, registry, beside=old, source_of=source_of)


def test_a_plan_that_would_not_be_read_is_not_written(registry: Registry, source_of: SourceOf) -> None:
    kinds = {op: Kind(op, "inference", {"x": "float16"}) for op in ("softmax", "silu_and_mul")}
    made = [Choice("triton.softmax", kinds["softmax"], {"M": (i, i)}, "") for i in range(9000)]
    made += [Choice("triton.silu_and_mul", kinds["silu_and_mul"], {"M": (i, i)}, "") for i in range(90)]
    with pytest.raises(ArgumentValueError, match=r"the most is of softmax \(9000 entries, \d+ KiB\), silu_and_mul"):
        plan_text(make_plan({H200: made}, registry, source_of=source_of))


def test_an_unlimited_dimension_is_left_out() -> None:
    assert plain({"M": (0, LARGEST), "N": (0, 5)}) == {"N": (0, 5)}
