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

__all__ = [
    "LAYOUT_FACTS",
    "Case",
    "Choice",
    "Contract",
    "Cost",
    "Draw",
    "Ends",
    "Indices",
    "Parameter",
    "Result",
    "TensorArgument",
    "Tolerance",
    "alternatives",
]
