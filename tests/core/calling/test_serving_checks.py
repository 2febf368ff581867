"""``PORTAKERNEL_CHECKS=1`` of what serving ops are given: no page, slot, expert or length that there is not."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from portakernel.calling.value_checks import check_values
from portakernel.contract import Case, Contract, Cost, Draw, Parameter, Result, TensorArgument, Tolerance
from portakernel.contract.soundness import contract_faults
from portakernel.contract.value_rules import Experts, Indices, Lengths, Pages, Slots
from portakernel.errors import ArgumentValueError, IndexOutOfRangeError
from portakernel_kit.conformance.inputs import draw_inputs, generator

INTEGERS = ("int32", "int64")
TABLE = Draw("pages", below="NP", lengths="lens", page="P")
PAGED = Contract(
    op="paged",
    summary="",
    formula="",
    tensors=(
        TensorArgument("cache", ("NP", "P", "D"), ("float32",), draw=Draw(poison="table")),
        TensorArgument("table", ("B", "W"), INTEGERS, draw=TABLE, rule=Pages("NP", "lens", "P")),
        TensorArgument("lens", ("B",), INTEGERS, draw=Draw("lengths", below="W*P"), rule=Lengths("W*P")),
        TensorArgument("slots", ("T",), INTEGERS, draw=Draw("slots", below="NP*P"), rule=Slots("NP*P")),
        TensorArgument("picked", ("T", "K"), INTEGERS, draw=Draw("experts", below="E"), rule=Experts("$experts")),
        TensorArgument("weights", ("E", "D"), ("float32",)),
    ),
    parameters=(
        Parameter("experts", 6, kind="int"),
        Parameter("most", None, kind="int", optional=True, bounds="lens"),
    ),
    outputs=(Result("y", ("B", "D"), like="cache"),),
    cases=(Case("pages", dims={"B": 7, "D": 4, "NP": 40, "P": 8, "W": 5, "T": 9, "K": 2, "E": 6}),),
    tolerance=Tolerance(),
    cost=lambda *_: Cost(0, 0),
    source="",
)


def given(**changes: Any) -> dict[str, Any]:
    """Two sequences, of 5 and 9 tokens, in 4 pages of 4 tokens; 6 experts."""
    whole = {
        "cache": torch.zeros(4, 4, 2),
        "table": [[0, 2, 99], [3, 1, 2]],
        "lens": [5, 9],
        "slots": [3, -1, 15],
        "picked": [[0, 5], [2, 2], [1, 0]],
        "weights": torch.zeros(6, 2),
        "experts": 6,
        "most": None,
        **changes,
    }
    return {name: torch.tensor(each) if isinstance(each, list) else each for name, each in whole.items()}


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("dtype", INTEGERS)
def test_what_the_kit_draws_is_accepted_with_its_poisoned_entries(seed, dtype):
    dtypes = {tensor.name: tensor.dtypes[0] if tensor.dtypes != INTEGERS else dtype for tensor in PAGED.tensors}
    inputs = draw_inputs(PAGED, PAGED.cases[0], dtypes, "cpu", generator(seed))
    check_values(PAGED, {**inputs.given, "experts": 6, "most": int(inputs.given["lens"].max())})


@pytest.mark.parametrize("most", [9, 1 << 31, (1 << 33) + 5, (1 << 63) - 1])
def test_a_bound_of_lengths_may_be_larger_than_they_can_be(most):
    lengths = torch.tensor([5, 9], dtype=torch.int32)
    check_values(PAGED, {**given(), "lens": lengths, "most": most})


def test_what_no_length_reaches_may_be_anything():
    assert PAGED.has_rules
    check_values(PAGED, given())
    check_values(PAGED, given(lens=[0, 0], table=[[-1, 7, 99], [-9, 4, 4]]))
    check_values(PAGED, given(lens=[12, 4], table=[[0, 1, 2], [3, -1, -1]], most=12))
    check_values(PAGED, given(slots=[-1, -1, -1]))
    none = {"table": torch.zeros(0, 3).int(), "lens": torch.zeros(0).int()}
    check_values(PAGED, given(**none, slots=torch.zeros(0).int(), picked=torch.zeros(0, 2).int()))


PAGE = "P = 4: give the page that holds the tokens, or a smaller length"
PADDING = "a row of padding needs one too; give it any, with weight 0"
SLOT = "or -1 for a token that is not written"
WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    (
        {"table": [[0, 4, 9], [3, 1, 2]]},
        IndexOutOfRangeError,
        f"table[0, 1] is 4; it must be in [0, NP) with NP = 4, because lens[0] is 5, which reaches 2 pages of {PAGE}",
    ),
    (
        {"table": [[0, 2, 9], [3, 1, -1]]},
        IndexOutOfRangeError,
        f"table[1, 2] is -1; it must be in [0, NP) with NP = 4, because lens[1] is 9, which reaches 3 pages of {PAGE}",
    ),
    (
        {"lens": [5, 13]},
        ArgumentValueError,
        "lens[1] is 13; it must be in [0, W*P] with W*P = 12: there is room for no more tokens",
    ),
    (
        {"lens": [-1, 13]},
        ArgumentValueError,
        "lens[0] is -1; it must be in [0, W*P] with W*P = 12: a sequence without tokens has length 0",
    ),
    ({"lens": [5, 9], "most": 8}, ArgumentValueError, "most is 8, but lens[1] is 9; it must be at least that, or None"),
    (
        {"slots": [3, 16, -5]},
        IndexOutOfRangeError,
        f"slots[1] is 16; it must be in [0, NP*P) with NP*P = 16, {SLOT}",
    ),
    (
        {"slots": [3, -1, -2]},
        IndexOutOfRangeError,
        f"slots[2] is -2; it must be in [0, NP*P) with NP*P = 16, {SLOT}",
    ),
    (
        {"slots": [9, 3, -1, 3, 9]},
        ArgumentValueError,
        f"slots[3] is 3, and so is slots[1]; each slot is written once: give one of them another, {SLOT}",
    ),
    (
        {"picked": [[0, 5], [2, 6], [-1, 0]]},
        IndexOutOfRangeError,
        f"picked[1, 1] is 6; it must be in [0, experts) with experts = 6: {PADDING}",
    ),
    (
        {"picked": [[0, 5], [2, 3], [-1, 0]]},
        IndexOutOfRangeError,
        f"picked[2, 0] is -1; it must be in [0, experts) with experts = 6: {PADDING}",
    ),
]


@pytest.mark.parametrize(("changes", "kind", "text"), WRONG, ids=[text.partition(";")[0] for *_, text in WRONG])
def test_the_first_wrong_element_is_named_with_what_is_accepted_and_what_to_do(changes, kind, text):
    rows = len(changes.get("slots", range(3)))
    changes = {"picked": [[0, 1]] * rows, **changes}
    with pytest.raises(kind, match=f"^{re.escape(f'paged: {text}')}$") as caught:
        check_values(PAGED, given(**changes))
    assert type(caught.value) is kind


def test_a_table_is_not_judged_by_lengths_that_cannot_be_read():
    bad = given(table=[[9, 9, 9], [9, 9, 9]])
    with pytest.raises(IndexOutOfRangeError, match=r"^paged: table\[0, 0\] is 9; "):
        check_values(PAGED, bad)
    check_values(PAGED, {**bad, "lens": bad["lens"].to("meta")})


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (Slots("S*Q"), "tensor slots, rule Slots: unknown 'Q'; "),
        (Lengths("$most"), "tensor slots, rule Lengths: unknown '$most'; "),
        (Experts("K"), "tensor slots, rule Experts: unknown 'K'; "),
        (Indices("T", "ignore"), "tensor slots, rule Indices: unknown 'ignore'; "),
        (Pages("S", "slots", "D"), "tensor slots, rule Pages: 'slots' is no argument with a rule Lengths; "),
    ],
)
def test_a_rule_that_names_what_there_is_not_makes_no_contract(rule, text):
    def made(rule: Any) -> Contract:
        return Contract(
            op="write",
            summary="",
            formula="",
            tensors=(
                TensorArgument("rows", ("T", "D"), ("float32",)),
                TensorArgument("cache", ("S", "D"), ("rows",), mutated=True),
                TensorArgument("slots", ("T",), INTEGERS, rule=rule),
            ),
            outputs=(),
            cases=(Case("a few", dims={"T": 3, "D": 5, "S": 9}),),
            tolerance=Tolerance(),
            cost=lambda *_: Cost(0, 0),
            source="",
        )

    assert list(contract_faults(made(Slots("S")))) == []
    (fault,) = contract_faults(made(rule))
    assert fault.startswith(text)


CONTRACT = """
from portakernel.contract import Case, Contract, Cost, TensorArgument, Tolerance
from portakernel.contract.value_rules import Slots

CONTRACT = Contract(
    op="write_rows",
    summary="",
    formula="",
    tensors=(
        TensorArgument("rows", ("T", "D"), ("float32",)),
        TensorArgument("cache", ("S", "D"), ("rows",), mutated=True),
        TensorArgument("slots", ("T",), ("int64",), rule=Slots("S")),
    ),
    outputs=(),
    cases=(Case("a few", dims={"T": 3, "D": 5, "S": 9}),),
    tolerance=Tolerance({"float32": 0.0}),
    cost=lambda *_: Cost(0, 0),
    source="",
)
"""
REFERENCE = """
def forward(rows, cache, slots):
    there = slots >= 0
    cache[slots[there]] = rows[there]
"""
PROGRAM = """
import sys, warnings
import portakernel.contracts, portakernel.references
portakernel.contracts.__path__.append(sys.argv[1] + "/contracts")
portakernel.references.__path__.append(sys.argv[1] + "/references")
import torch
import portakernel
from portakernel import ops

warnings.simplefilter("ignore")
rows, right, wrong = torch.ones(2, 3), torch.tensor([2, -1]), torch.tensor([2, 2])
cache = torch.zeros(4, 3)
bound = portakernel.bind("write_rows", rows, cache, right)
compiled = torch.compile(lambda r, c, s: ops.write_rows(r, c, s), backend="aot_eager", fullgraph=True)
for call in (ops.write_rows, bound, torch.ops.portakernel.write_rows, compiled):
    call(rows, cache.zero_(), right)
    assert cache.sum() == 3
    try:
        call(rows, cache.zero_(), wrong)
        print("wrote", cache.sum().item())
    except portakernel.errors.ArgumentValueError as error:
        print(str(error).partition(";")[0], cache.sum().item())
"""


@pytest.mark.parametrize("checks", ["0", "1"])
def test_every_way_to_an_op_that_writes_looks_first_where_it_is_asked_to(
    python: Any, imported_to_compile: tuple[str, ...], tmp_path: Path, checks: str
):
    for folder, text in {"contracts": CONTRACT, "references": REFERENCE}.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "write_rows.py").write_text(text, encoding="utf-8")
    environment = {**os.environ, "PORTAKERNEL_CHECKS": checks}
    ran = python("-c", PROGRAM, tmp_path, env=environment, imports=imported_to_compile)
    assert ran.returncode == 0, ran.stderr
    said = {"0": "wrote 3.0", "1": "write_rows: slots[1] is 2, and so is slots[0] 0.0"}
    assert ran.stdout.splitlines() == [said[checks]] * 4
