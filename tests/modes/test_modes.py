"""docs/modes.md says what every op does in every mode of PyTorch: each cell is observed again here."""

from __future__ import annotations

from pathlib import Path

import pytest

from portakernel.conformance.modes.table import MODES, Mode, page, read_cells
from portakernel.contracts import contracts

PAGE = (Path(__file__).parents[2] / "docs" / "modes.md").read_text(encoding="utf-8")
CELLS = read_cells(PAGE)

pytestmark = [
    # which kernel serves is another matter
    pytest.mark.filterwarnings("ignore::portakernel.errors.FallbackWarning"),
    pytest.mark.filterwarnings("ignore::portakernel.errors.ReferenceWarning"),
    # torch's own compiler, on importing its parts
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]


@pytest.mark.parametrize("op", contracts())
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_an_op_does_in_a_mode_what_the_page_says(mode: Mode, op: str) -> None:
    assert str(mode.run(op)) == CELLS[mode.name, op]


def test_every_cell_works_or_refuses_with_an_error_of_portakernel() -> None:
    assert CELLS.keys() == {(mode.name, op) for mode in MODES for op in contracts()}
    unclear = {
        cell for cell in CELLS.values() if cell != "works" and not cell.startswith("refuses with `DerivativeError`: ")
    }
    assert unclear == set()


def test_the_page_is_what_its_cells_and_the_modes_make() -> None:
    outcomes = {mode.name: {op: CELLS[mode.name, op] for op in contracts()} for mode in MODES}
    assert page(outcomes) == PAGE, "docs/modes.md is stale: run `make modes`"
