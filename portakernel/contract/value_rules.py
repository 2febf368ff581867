"""What the numbers in a tensor argument have to be, where an op is defined for some alone; as data, without torch.

Kernels need not look: on accelerators the answer would have to be waited for. ``PORTAKERNEL_CHECKS=1`` looks before
each call (``portakernel.calling.value_checks``).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Indices:
    """Each number is from 0 to below the size of the dimension ``below``, or that of the parameter ``otherwise``."""

    below: str
    otherwise: str = ""


@dataclass(frozen=True, slots=True)
class Ends:
    """The numbers begin with 0, never fall, and are at most the size of the dimension ``most``."""

    most: str


ValueRule = Indices | Ends
