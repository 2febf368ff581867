"""Plans that are damaged, hostile or for something else: each is refused in words, at once, and whole."""

from __future__ import annotations

import os
import pickle
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from portakernel.claims.request import PLAIN_FACTS
from portakernel.errors import PlanError
from portakernel.plan import Place, judging, pins, read_form, read_plan
from portakernel.plan.export import make_plan
from portakernel.plan.judging import notes_on
from portakernel.plan.pins import SourceOf
from portakernel.plan.plan import MadeWith
from portakernel.plan.reading import problems_of
from portakernel.plan.writing import plan_text
from portakernel.registry.registry import Registry
from portakernel.tuning.choices import Choice
from portakernel.tuning.key import Kind

H200 = Place("nvidia:sm_90", 132)
HEAD = """\
schema_version: 1
kernels:
  triton.rms_norm: {source: 'c71877364d68'}
  torch.rms_norm: {source: 'c71877364d69'}
targets:
"""
# Without the pin that GOOD does not use.
USED = "".join(line for line in HEAD.splitlines(keepends=True) if "torch.rms_norm" not in line)
PART = "  nvidia:sm_90/132:\n    rms_norm:\n"
GOOD = "      - {dtype: bfloat16, M: 1..512, N: 4096, use: triton.rms_norm}\n"


def entry(old: str, new: str) -> str:
    assert old in GOOD
    return HEAD + PART + GOOD.replace(old, new)


# The file and what is said of it.
DAMAGED: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "holds no keys; the first is `schema_version: 1`"),
    "a list": ("- 1\n", "holds [1], not a mapping of keys"),
    "no targets": ("schema_version: 1\n", "required key 'targets' is missing"),
    "of a later form": (HEAD.replace(": 1\n", ": 9\n", 1) + PART + GOOD, "this portakernel knows versions up to 1"),
    "torn": (HEAD + PART + GOOD[:30], "is not valid YAML"),
    "two documents": (HEAD + PART + GOOD + "---\n" + HEAD, "holds several documents; one is accepted"),
    "binary": (b"\x7fELF\x02\x01\x01\x00" + bytes(range(256)) * 8, "is not UTF-8"),
    "zero bytes": (b"\0" * 4096, "characters are not allowed"),
    "too large": (HEAD + PART + GOOD + "#" * (2 << 20), "at most 1048576 are accepted"),
    "too many values": (
        HEAD + PART + "      - {dtype: bfloat16, use: a}\n" * 13000,
        "expands to more than 50000 values",
    ),
    "a bomb of anchors": (
        "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
        + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)),
        "expands to more than 50000 values",
    ),
    "nested deep": ("targets: " + "[" * 40000 + "]" * 40000, "nest"),
    "a tag of Python": (HEAD + "  x: !!python/object/apply:os.system [true]\n", "is not accepted"),
    "a merge key": (HEAD + PART + "      - {<<: {dtype: bfloat16}, use: triton.rms_norm}\n", "merge keys (<<)"),
    "a key twice": (entry("N: 4096", "M: 4096"), "key 'M' is a duplicate of the one in line 8"),
    "a target twice": (HEAD + PART + GOOD + PART + GOOD, "is a duplicate of the one in line 6"),
    "what a terminal obeys": (entry("triton.rms_norm", '"\\e[2Jtriton"'), "which a terminal obeys or hides"),
    "what a terminal hides": (entry("bfloat16", '"bfloat\\u202e16"'), "which a terminal obeys or hides"),
    "NaN": (entry("N: 4096", "features: {weight_offset: .nan}"), "found nan; numbers are finite"),
    "no number": (entry("4096", "many"), "found 'many'; write a size, such as 4096, or two, such as 1..512"),
    "a fraction": (entry("4096", "4096.5"), "found 4096.5; write a size"),
    "true": (entry("4096", "true"), "found True; write a size"),
    "negative": (entry("1..512", "-4..512"), "found '-4..512'; write a size"),
    "backwards": (entry("1..512", "512..1"), "the least one first"),
    "beyond 64 bits": (entry("4096", "9223372036854775808"), "sizes go from 0 to 2**63 - 1"),
    "a huge number": (entry("4096", "9" * 5000), "is not a int: it has 5000 characters"),
    "an open range": (entry("1..512", "1.."), "found '1..'; write a size"),
    "a dtype that is none": (entry("bfloat16", "bfloat61"), "unknown dtype 'bfloat61'; did you mean 'bfloat16'"),
    "dtypes twice": (entry("dtype: bfloat16", "dtype: bfloat16, dtypes: {x: float16}"), "one of the two"),
    "a word misspelled": (
        entry("N: 4096", "layuot: [x.contiguous = true]"),
        "unknown word 'layuot'; did you mean 'layout'? An entry has dtype, dtypes, phase, formats, features",
    ),
    "another word misspelled": (entry("dtype", "dtpye"), "unknown word 'dtpye'; did you mean 'dtype' or 'dtypes'?"),
    "a kernel misspelled": (
        entry("triton.rms_norm", "triton.rms_nrom"),
        "write `triton.rms_nrom: {source: …}` there if it is meant; did you mean 'triton.rms_norm'",
    ),
    "a dimension misspelled, that keeps no entries apart": (
        entry("M: 1..512", "MM: 1..512") + GOOD.replace("1..512", "513..999").replace("triton", "torch"),
        "for some of these sizes, and this torch.rms_norm; rms_norm has no dimension 'MM': did you mean 'M'?",
    ),
    "no dtype": (entry("dtype: bfloat16, ", ""), "one of the two"),
    "no kernel": (entry(", use: triton.rms_norm", ""), "required key 'use' is missing"),
    "a kernel that is a list": (entry("use: triton.rms_norm", "use: [triton.rms_norm]"), "valid string"),
    "a phase that is none": (entry("N: 4096", "phase: trainig"), "found 'trainig'; did you mean 'training'"),
    "a lock that is none": ("lock: all\n" + HEAD + PART + GOOD, "found 'all'; known: everything, listed"),
    "an unknown key": ("locked: true\n" + HEAD + PART + GOOD, "unknown key; did you mean 'lock'"),
    "an unknown key of a kernel": (HEAD.replace("{s", "{us: 4, s", 1) + PART + GOOD, "unknown key; known: requires"),
    "a source that is none": (HEAD.replace("c71877364d68", "../../x") + PART + GOOD, "8 to 64 hex digits in quotes"),
    "a source that is a number": (HEAD.replace("'c71877364d68'", "12345678") + PART + GOOD, "valid string"),
    "a kernel without a source": (entry("triton.rms_norm", "hip.rms_norm"), "hip.rms_norm has no source under"),
    "a target without units": (HEAD + PART.replace("/132", "") + GOOD, "is not of the form VENDOR:ARCH/UNITS"),
    "a target with no units": (HEAD + PART.replace("/132", "/0") + GOOD, "is not of the form VENDOR:ARCH/UNITS"),
    "a target that is none": (HEAD + PART.replace("nvidia:sm_90", "../etc") + GOOD, "is not of the form vendor:arch"),
    "two kernels for a call": (
        HEAD + PART + GOOD + GOOD.replace("1..512", "512..600").replace("triton", "torch"),
        "9: targets.nvidia:sm_90/132.rms_norm[1]: line 8 has triton.rms_norm for some of these sizes, and this torch",
    ),
    "two kernels, the one dtype spelled out": (
        HEAD + PART + GOOD + "      - {dtypes: {weight: bfloat16, x: bfloat16}, use: torch.rms_norm}\n",
        "line 8 has triton.rms_norm for some of these sizes",
    ),
    "a digest of something else": (
        HEAD + PART + GOOD + f"digest: sha256:{'0' * 64}\n",
        f"is sha256:{'0' * 64}, and what stands above has sha256:",
    ),
    "a digest that is none": (HEAD + PART + GOOD + "digest: md5:00\n", "it is written as sha256:, with 64 hex digits"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_plan_is_refused_with_a_sentence(write: Callable[..., Path], name: str) -> None:
    content, said = DAMAGED[name]
    path = write(content)
    began = time.process_time()
    with pytest.raises(PlanError) as caught:
        read_form(path)
    assert time.process_time() - began < 5
    assert said in str(caught.value)
    assert str(caught.value).isprintable() or "\n" in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("kind", ["/dev/zero", "a pipe", "a folder", "nothing", "a loop"])
def test_what_is_no_file_is_not_waited_for(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "plan.yaml"
    match kind:
        case "/dev/zero":
            path.symlink_to(kind)
        case "a pipe":
            os.mkfifo(path)
        case "a folder":
            path.mkdir()
        case "a loop":
            path.symlink_to(path)
        case _:
            pass
    said = {"/dev/zero": "a character device", "a pipe": "a named pipe", "a folder": "a folder"}
    told = said.get(kind, "cannot be read: ")
    with pytest.raises(PlanError, match=rf"plan\.yaml: (is )?{told}"):
        read_form(path)


def test_thousands_of_nested_entries_are_compared_at_once(write: Callable[..., Path]) -> None:
    lines = [f"      - {{dtype: bfloat16, M: {i}..{9000 - i}, N: {i}, use: triton.rms_norm}}\n" for i in range(4000)]
    path = write(HEAD + PART + "".join(lines))
    began = time.process_time()
    assert len(read_form(path).parts[H200]["rms_norm"]) == 4000
    path.write_text(path.read_text().replace("4999, N: 3999, use: triton", "5001, N: 1..5000, use: torch"), "utf-8")
    path.write_text(path.read_text().replace("5001, N: 3999, use: triton", "5001, N: 1..5000, use: torch"), "utf-8")
    with pytest.raises(PlanError, match=r"^\S+:4007: \S+ line 9 has triton\.rms_norm for some of these sizes"):
        read_form(path)
    assert time.process_time() - began < 20


def good(registry: Registry, source_of: SourceOf) -> str:
    kind = Kind("softmax", "inference", {"x": "float16"})
    plan = make_plan(
        {
            H200: [Choice("triton.softmax", kind, {"M": (1, 9)}, ""), Choice("torch.softmax", kind, {}, "")],
            Place("amd:gfx942", 304): [Choice("hip.softmax", kind, {}, "")],
        },
        registry,
        source_of=source_of,
        made_with={H200: MadeWith("1.2", "0.1")},
    )
    return plan_text(plan)


def without_digest(text: str) -> str:
    return text[: text.index("digest:")]


def test_every_mismatch_is_listed_and_nothing_is_followed(
    registry: Registry, source_of: SourceOf, changed: dict[str, str], write: Callable[..., Path]
) -> None:
    text = without_digest(good(registry, source_of))
    text = text.replace("torch.softmax", "torch.softmx")
    text += "    rms_nrm:\n      - {dtype: float16, use: torch.softmx}\n"
    text += "    rms_norm:\n      - {dtype: float16, Q: 3, features: {epz: 1.0}, use: triton.softmax}\n"
    text += "      - {dtypes: {x: float16, y: float16, weight: int64}, use: triton.softmax}\n"
    text += "      - {dtype: int32, use: triton.softmax}\n"
    changed["triton.softmax"] = "!"
    path = write(text)
    with pytest.raises(PlanError) as caught:
        read_plan(path, registry, here=["nvidia:sm_90"], named_by="PORTAKERNEL_PLAN", source_of=source_of)
    error = pickle.loads(pickle.dumps(caught.value))
    assert error.named_by == "PORTAKERNEL_PLAN"
    assert str(error).startswith("PORTAKERNEL_PLAN: this plan is refused, and nothing of it is followed:\n")
    told = [problem.removeprefix(f"{path}:") for problem in error.problems]
    place = "targets.nvidia:sm_90/132"
    whole = [
        r"kernels\.torch\.softmx: no kernel here is called that; did you mean .*'torch\.softmax'.*",
        r"kernels\.triton\.softmax: its source is [0-9a-f]{16} here, and [0-9a-f]{16} in the plan.*",
        rf"{place}\.rms_nrm: unknown op 'rms_nrm'; did you mean 'rms_norm'.*",
        rf"{place}\.rms_norm\[0\]: use: triton.softmax is a kernel of softmax, not of rms_norm",
        rf"{place}\.rms_norm\[0\]: rms_norm has no dimension 'Q'; known: M, N",
        rf"{place}\.rms_norm\[0\]: unknown parameter 'epz'; did you mean 'eps'\?",
        rf"{place}\.rms_norm\[1\]: use: triton.softmax is a kernel of softmax, not of rms_norm",
        rf"{place}\.rms_norm\[1\]: dtypes: rms_norm has no tensor 'y'; known: weight, x",
        rf"{place}\.rms_norm\[1\]: dtypes: weight of rms_norm is never int64; it can be .*float32.*",
        rf"{place}\.rms_norm\[2\]: use: triton.softmax is a kernel of softmax, not of rms_norm",
        rf"{place}\.rms_norm\[2\]: dtype: no tensor of rms_norm can be int32 here; give `dtypes` by tensor",
    ]
    assert len(told) == len(whole)
    for found, wanted in zip(told, whole, strict=True):
        assert re.fullmatch(rf"\d+: {wanted}", found), found


def test_an_unknown_target_is_refused_wherever_it_is_read(
    registry: Registry, source_of: SourceOf, write: Callable[..., Path]
) -> None:
    text = without_digest(good(registry, source_of)).replace("amd:gfx942/304", "amdd:gfx942/304")
    with pytest.raises(PlanError, match=r"targets\.amdd:gfx942/304: unknown vendor 'amdd'; did you mean 'amd'\?"):
        read_plan(write(text), registry, here=["nvidia:sm_90"], source_of=source_of)


def test_other_targets_parts_are_read_for_their_form_alone(
    registry: Registry, source_of: SourceOf, changed: dict[str, str], write: Callable[..., Path]
) -> None:
    text = without_digest(good(registry, source_of)).replace("hip.softmax", "acme.softmax")
    changed["triton.softmax"] = "!"
    path = write(text.replace("  amd:gfx942/304:\n", "  amd:gfx942/304:\n    fft:\n      - {dtype: x, use: y}\n"))
    with pytest.raises(PlanError, match="unknown dtype 'x'"):
        read_plan(path, registry, here=[], source_of=source_of)
    path.write_text(
        path.read_text().replace("{dtype: x, use: y}", "{dtype: float16, Q: 3, use: acme.softmax}"), "utf-8"
    )
    assert read_plan(path, registry, here=[], source_of=source_of).notes == ()


def test_versions_driver_and_torch_are_notes(
    registry: Registry, source_of: SourceOf, write: Callable[..., Path]
) -> None:
    text = good(registry, source_of)
    plan = read_plan(write(text), registry, here=["nvidia:sm_90"], source_of=source_of)
    assert any(
        note.startswith("nvidia:sm_90/132: torch is ") and note.endswith("0.1 in the plan") for note in plan.notes
    )
    assert not [note for note in plan.notes if "softmax" in note]


def test_versions_that_the_plan_has_otherwise_are_told_as_they_are(
    registry: Registry, source_of: SourceOf, write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = {"triton": "3.9", "acme": "", "numpy": "2"}
    monkeypatch.setattr(pins, "versions", lambda kernel: installed)
    known, sm_90 = read_plan(write(good(registry, source_of)), registry, here=[], source_of=source_of), ["nvidia:sm_90"]
    places = [place for place in known.parts if place.target in sm_90]

    def written(requires: dict[str, str], versions: str = "") -> Path:
        """As if the files were the same, and the versions others where that is said."""
        pinned = {
            name: replace(pin, source=pin.source[:10] + (versions or pin.source[10:]), requires=requires)
            for name, pin in known.pins.items()
        }
        return write(plan_text(replace(known, pins=pinned)))

    def notes(path: Path) -> list[str]:
        found = notes_on(read_form(path), places, registry, source_of)
        return [note for note in found if note.startswith("triton.softmax")]

    assert notes(written({"triton": "3.9"})) == []
    (wrong,) = notes(written({"triton": "3.8", "acme": "7", "torch": "0.1"}))
    assert wrong == (
        "triton.softmax: acme is not installed here, and 7 in the plan; the plan has torch 0.1, and the kernel's source"
        " here is made with no torch; triton is 3.9 here, and 3.8 in the plan; its source is the one here, so that"
        " `requires` is not what the plan was made with"
    )
    other = written({"triton": "3.8"}, "000000")
    told = "acme is not installed here, and the plan has no version of it"
    told += "; numpy is 2 here, and the plan has no version of it; triton is 3.9 here, and 3.8 in the plan"
    (granted,) = notes(other)
    assert granted == (
        f"triton.softmax: its files are those of the plan, and {told}: those of the plan are taken for granted where"
        " it runs"
    )
    # of hardware that is not here what is installed there counts; whoever follows the plan has to have the same
    assert problems_of(other, places, registry, source_of) == []
    with pytest.raises(PlanError, match=re.escape(f"in the plan ({told})")):
        read_plan(other, registry, here=sm_90, source_of=source_of)
    monkeypatch.setattr(judging, "targets_here", lambda registry: frozenset(sm_90))
    assert notes(other) == []
    assert any(f"in the plan ({told})" in problem for problem in problems_of(other, places, registry, source_of))
    files = write(plan_text(replace(known, pins={n: replace(p, source="0" * 16) for n, p in known.pins.items()})))
    assert notes(files) == []


def test_a_layout_that_no_kernel_asks_for_is_noted(
    registry: Registry, source_of: SourceOf, write: Callable[..., Path]
) -> None:
    text = without_digest(good(registry, source_of))
    asked = text.replace("float16, M: 1..9", "float16, layout: [x.contiguous = false], M: 1..9")
    notes = read_plan(write(asked), registry, here=["nvidia:sm_90"], source_of=source_of).notes
    said = r"plan\.yaml:\d+: layout: no kernel of softmax here sets 'x.contiguous = false': no call is of this kind; "
    assert any(re.match(said + ".*x.contiguous = true", note) for note in notes), notes


@pytest.mark.parametrize(
    ("dtypes", "said"),
    [
        ("{x: float32}", "dtypes: every call of rms_norm has weight, and this entry not: it covers none"),
        ("{weight: float16}", "dtypes: every call of rms_norm has x, and this entry not: it covers none"),
        (
            "{x: float32, weight: float64}",
            "dtypes: no call of rms_norm has these together: weight is float64; it must be float32",
        ),
        ("{x: int32, weight: float32}", "dtypes: x of rms_norm is never int32; it can be float32, float16, bfloat16"),
    ],
)
def test_dtypes_that_no_call_has_are_refused(
    registry: Registry, source_of: SourceOf, write: Callable[..., Path], dtypes: str, said: str
) -> None:
    text = entry("dtype: bfloat16", f"dtypes: {dtypes}")
    with pytest.raises(PlanError) as caught:
        read_plan(write(text), registry, here=["nvidia:sm_90"], source_of=source_of)
    assert any(problem.endswith(f": targets.nvidia:sm_90/132.rms_norm[0]: {said}") for problem in caught.value.problems)


def test_a_feature_that_no_kernel_looks_at_is_noted(
    registry: Registry, source_of: SourceOf, write: Callable[..., Path]
) -> None:
    kind = Kind("rms_norm", "inference", {"x": "float16", "weight": "float16"}, features={"eps": 0.5})
    seen = replace(kind, features={"weight_offset": 1.0})
    choices = [Choice("triton.rms_norm", one, {"M": (1, 9)}, "") for one in (kind, seen)]
    path = write(plan_text(make_plan({H200: choices}, registry, source_of=source_of)))
    notes = [
        note for note in read_plan(path, registry, here=["nvidia:sm_90"], source_of=source_of).notes if "eps" in note
    ]
    (note,) = notes
    said = "no kernel of rms_norm here looks at eps, by which no kinds of calls differ: this entry covers none"
    assert re.fullmatch(rf"plan\.yaml:\d+: features: {said}; leave eps out", note)


def test_pins_that_no_entry_uses_are_held_against_kernels_too(
    registry: Registry, source_of: SourceOf, changed: dict[str, str], write: Callable[..., Path]
) -> None:
    text = without_digest(good(registry, source_of))
    unused = "".join(f"  {name}: {{source: {source!r}}}\n" for name, source in {
        "triton.rms_norm": source_of(registry.kernels["triton.rms_norm"]), "acme.rms_norm": "c71877364d68",
    }.items())  # fmt: skip
    path = write(text.replace("kernels:\n", f"kernels:\n{unused}"))
    notes = read_plan(path, registry, here=[], source_of=source_of).notes
    assert "triton.rms_norm: no entry uses it" in notes
    assert any(
        note.startswith("acme.rms_norm: no entry uses it, and no kernel here is called that; ") for note in notes
    )
    changed["triton.rms_norm"] = "!"
    with pytest.raises(PlanError, match=r"its source is .* in the plan.*; no entry uses it: leave it out"):
        read_plan(path, registry, here=[], source_of=source_of)


@pytest.mark.parametrize(
    ("bound", "said"),
    [
        ("x.N > 3", "the memory of a tensor has no 'N'; known: alignment, contiguous, flat_rows, stride_last"),
        ("x.alignmnt a multiple of 16", "the memory of a tensor has no 'alignmnt'; did you mean 'alignment'?"),
        ("y.alignment a multiple of 16", "softmax has no tensor 'y'; known: x"),
    ],
)
def test_a_layout_that_no_kernel_can_ask_for_is_refused(
    registry: Registry, source_of: SourceOf, write: Callable[..., Path], bound: str, said: str
) -> None:
    text = without_digest(good(registry, source_of))
    asked = text.replace("float16, M: 1..9", f"float16, layout: [{bound}], M: 1..9")
    with pytest.raises(PlanError, match=re.escape(f"layout: found {bound!r}; {said}")):
        read_plan(write(asked), registry, here=["nvidia:sm_90"], source_of=source_of)


def test_what_every_kernel_here_says_of_memory_can_stand_in_a_plan(registry: Registry) -> None:
    of_memory = {(op, limit.parameter) for op in registry.ops for one in registry.for_op(op) for limit in one.limits()}
    layouts = {(op, text) for op, text in of_memory if "." in text}
    assert layouts
    assert not [
        text
        for op, text in layouts
        if text.partition(".")[0] not in registry.ops[op].typed or text.partition(".")[2] not in PLAIN_FACTS
    ]


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("amd:gfx000", "'gfx000' is no arch of amd that this portakernel knows; did you mean 'gfx1200'"),
        ("nvidia:sm_91", "'sm_91' is no arch of nvidia that this portakernel knows; did you mean 'sm_90'"),
        ("nvidia:hopper", "'hopper' is a family of nvidia's archs; name one of them: sm_90"),
        ("nvida:sm_90", "unknown vendor 'nvida'; did you mean 'nvidia'?"),
    ],
)
def test_an_arch_that_there_is_not_is_told_with_the_nearest(
    registry: Registry, source_of: SourceOf, write: Callable[..., Path], target: str, said: str
) -> None:
    path = write(USED + PART.replace("nvidia:sm_90", target) + GOOD)
    with pytest.raises(PlanError) as told:
        read_plan(path, registry, source_of=source_of)
    (problem,) = told.value.problems
    assert problem.startswith(f"{path}:5: targets.{target}/132: {said}")
    assert "\\n" not in problem


def test_an_arch_that_may_come_later_is_noted_with_the_nearest(
    registry: Registry, source_of: SourceOf, write: Callable[..., Path]
) -> None:
    def notes(target: str) -> tuple[str, ...]:
        text = USED + PART.replace("nvidia:sm_90", target) + GOOD
        return read_plan(write(text), registry, here=[], source_of=source_of).notes

    assert notes("nvidia:sm_90") == ()
    (note,) = notes("nvidia:sm_999")
    said = "'sm_999' is no arch that this portakernel knows, and is taken for a later one; did you mean 'sm_90'"
    assert note.startswith(f"plan.yaml:5: targets.nvidia:sm_999/132: {said}")
