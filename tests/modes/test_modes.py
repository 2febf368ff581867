"""docs/modes.md says what every op does in every mode of PyTorch: each cell is observed again here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from portakernel_pages.modes.table import MODES, Mode, page

from portakernel.contracts import own_contracts


def cells_of(text: str) -> dict[tuple[str, str], str]:
    """The outcomes that a page holds, by mode and op."""
    notes = dict(re.findall(r"^(\d+)\. (.*(?:\n[^\d\n#].*)*)", text, re.MULTILINE))
    found: dict[tuple[str, str], str] = {}
    names: list[str] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| op |"):
            names = cells[1:]
        elif line.startswith("| `"):
            op = cells[0].strip("`")
            for name, cell in zip(names, cells[1:], strict=True):
                note = notes.get(cell.removeprefix("refuses (").removesuffix(")"), "")
                found[name, op] = cell if cell in ("works", "–") else note.replace("\n", " ").replace("*op*", op)
    return found


PAGE = (Path(__file__).parents[2] / "docs" / "modes.md").read_text(encoding="utf-8")
CELLS = cells_of(PAGE)

pytestmark = [
    # which kernel serves is another matter
    pytest.mark.filterwarnings("ignore::portakernel.errors.FallbackWarning"),
    pytest.mark.filterwarnings("ignore::portakernel.errors.ReferenceWarning"),
    # torch's own compiler, on importing its parts
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]


@pytest.mark.turns(6)
@pytest.mark.parametrize("op", own_contracts())
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_an_op_does_in_a_mode_what_the_page_says(mode: Mode, op: str) -> None:
    assert str(mode.outcome(op)) == CELLS[mode.name, op]


def test_every_cell_works_or_refuses_with_an_error_of_portakernel() -> None:
    assert CELLS.keys() == {(mode.name, op) for mode in MODES for op in own_contracts()}
    unclear = {
        cell
        for cell in CELLS.values()
        if cell not in ("works", "–") and not re.match("refuses with `(Derivative|Transform)Error`: ", cell)
    }
    assert unclear == set()


def test_the_page_is_what_its_cells_and_the_modes_make() -> None:
    outcomes = {mode.name: {op: CELLS[mode.name, op] for op in own_contracts()} for mode in MODES}
    assert page(outcomes) == PAGE, "docs/modes.md is stale: run `make modes`"
