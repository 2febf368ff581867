"""What plugins and backends import, and all of it: ``portakernel.PLUGIN_API`` counts its incompatible changes.

This module has what manifests, hooks, probes and checks speak of, and loads neither torch nor Triton. Kernels find in

- ``portakernel.authoring.tensors`` where rows lie, what may be written, values on the host, captures, compilations;
- ``portakernel.authoring.triton`` the launch of Triton kernels, their interpreter, their probe, compiling ahead;
- ``portakernel.authoring.native`` CUDA and HIP C++: compilers, the cache of machine code, launches;
- ``portakernel.authoring.host`` files, folders, locks, drivers and torch's build, for probes and compilers' caches.

Whatever else lies in ``portakernel`` changes without notice.
"""

from __future__ import annotations

from portakernel.claims.capability import CannotRun, ReasonCode, Rejection
from portakernel.claims.int4_groups import check_groups, check_groups_or_all
from portakernel.claims.request import Phase, Request
from portakernel.claims.request_commands import warmup_call, warmup_call_on
from portakernel.contract import (
    Case,
    Choice,
    Contract,
    Cost,
    Draw,
    Grid,
    GridRow,
    Parameter,
    Result,
    TensorArgument,
    Tolerance,
)
from portakernel.contract.sizes import parse_size
from portakernel.contract.value_rules import Ends, Experts, Indices, Lengths, Pages, Slots
from portakernel.contracts import contract, contracts, reference_module
from portakernel.deciding.readiness import Usable
from portakernel.errors import ArgumentValueError, CaptureError, DriverError, NoKernelError, nearest
from portakernel.hookspecs import hookimpl
from portakernel.offline.compiled import Compiled, Compiling
from portakernel.text.printable import logger
from portakernel.words.target import Device, Target

__all__ = [
    "ArgumentValueError",
    "CannotRun",
    "CaptureError",
    "Case",
    "Choice",
    "Compiled",
    "Compiling",
    "Contract",
    "Cost",
    "Device",
    "Draw",
    "DriverError",
    "Ends",
    "Experts",
    "Grid",
    "GridRow",
    "Indices",
    "Lengths",
    "NoKernelError",
    "Pages",
    "Parameter",
    "Phase",
    "ReasonCode",
    "Rejection",
    "Request",
    "Result",
    "Slots",
    "Target",
    "TensorArgument",
    "Tolerance",
    "Usable",
    "check_groups",
    "check_groups_or_all",
    "contract",
    "contracts",
    "hookimpl",
    "logger",
    "nearest",
    "parse_size",
    "reference_module",
    "warmup_call",
    "warmup_call_on",
]
