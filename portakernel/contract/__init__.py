"""What an op is: its tensors, parameters, results, sizes, cases, tolerance and cost."""

from portakernel.contract.contract import (
    LAYOUT_FACTS,
    Case,
    Choice,
    Contract,
    Cost,
    Draw,
    Ends,
    Indices,
    Parameter,
    Result,
    TensorArgument,
    Tolerance,
    alternatives,
)
from portakernel.contract.grids import Grid, GridRow

__all__ = [
    "LAYOUT_FACTS",
    "Case",
    "Choice",
    "Contract",
    "Cost",
    "Draw",
    "Ends",
    "Grid",
    "GridRow",
    "Indices",
    "Parameter",
    "Result",
    "TensorArgument",
    "Tolerance",
    "alternatives",
]
