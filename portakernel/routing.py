"""What ``import portakernel`` offers on plans and measurements: what is called, loading them, agreeing on them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from portakernel.config import Config
from portakernel.deciding.routes import MeasuredSource, PlannedSource
from portakernel.deciding.sources import followed_plan, measurements, unread_store
from portakernel.errors import ArgumentTypeError, ArgumentValueError, ConfigWarning, PortakernelError
from portakernel.host.as_written import as_written
from portakernel.host.call_site import callers_level
from portakernel.host.output_file import obstacle
from portakernel.runtime import callers_so_far, dispatcher

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@as_written
def record(path: str | PathLike[str]) -> AbstractContextManager[None]:
    """Writes which kinds of calls this thread makes of ops inside the block, and how often, into the file at ``path``.

    The file lists ops, dtypes, shapes, layouts and keyword arguments, and nothing of what tensors hold; ``portakernel
    warmup``, ``bench`` and ``tune`` read it with ``--calls``. One that is there is replaced; without a call none is
    written.

        with portakernel.record("service.yaml"):
            serve_one_request()

    Handles of ``portakernel.bind`` count, their example once more when one is made, and calls that a graph of
    ``torch.compile`` keeps whole; what a graph dissolves does not.

    Raises:
        ArgumentTypeError: ``path`` is no path.
        ArgumentValueError: there can be no such file: it is a folder, or its folder cannot be written.
        OSError: the file can no longer be written at the block's end.
    """
    given: Any = path
    if not isinstance(given, (str, PathLike)):
        text = "record takes the path of the file to write, such as 'service.yaml', and is entered: with record(path):"
        raise ArgumentTypeError(f"{text} ...; this is {given!r}")
    file = Path(os.path.realpath(Path(path).expanduser()))  # a link stays, and what it names is written
    if why := obstacle(file):
        raise ArgumentValueError(f"record: {os.fspath(path)!r} {why}")
    dispatcher()  # plugins may ship ops
    from portakernel.torch_bridge.call_kinds import counting

    return counting(file)


@as_written
def load_plan(path: str | PathLike[str] | None) -> None:
    """Follows the plan at ``path`` from now on (docs/plans.md), in the place of ``PORTAKERNEL_PLAN``'s; None: none.

    It is read now: what is written to it later changes nothing. Every policy goes before it.

    Raises:
        PlanError: it is refused; holds every place that is not as it has to be. What was followed before stays so.
        ArgumentTypeError: what is given is no path and not None.
        PortakernelError: ranks have agreed on what they follow; or the plan is locked, and an op that was used before
            does not tell calls apart that the plan does.
    """
    if path is not None and not isinstance(path, (str, PathLike)):
        raise ArgumentTypeError(f"load_plan takes the path of a plan, or None; this is {path!r}")
    now = dispatcher()
    plan = followed_plan(None if path is None else os.fspath(path), now.registry, named_by="load_plan")
    _follow(plan, now.routes.measured)


@as_written
def load_tuning() -> None:
    """Follows what was measured until now (docs/tuning.md). Without it a process goes by what there was at its start.

    A store that ``PORTAKERNEL_TUNING_DIR`` names and that cannot be read is warned of.

    Raises:
        ConfigError: ``PORTAKERNEL_TUNING`` is not one of its words.
        PortakernelError: ranks have agreed on what they follow.
    """
    now, config = dispatcher(), Config.from_environment()
    if doubt := unread_store(config):
        warnings.warn(doubt, ConfigWarning, stacklevel=callers_level())
    _follow(now.routes.plan, measurements(config, now.registry))


@as_written
def agree(group: ProcessGroup | None = None) -> None:
    """Has all ranks of ``group`` follow what its first rank follows; each of them calls it, once, before any op.

    Three collectives, whatever happens, and none afterwards. Plans and measurements are then fixed until the process
    ends; policies are each rank's own, as before. Ranks whose devices differ by their units alone, such as CPUs by
    threads, are warned of where other things are followed for these; so is a rank whose own plan is locked, where the
    first one follows no locked plan.

    Raises:
        ArgumentTypeError: ``group`` is no group, or none that this rank is in.
        RankDisagreement: the sources of kernels differ; on every rank, whichever rank it is.
        RankLostError: a rank did not come before the group's timeout.
        PortakernelError: torch.distributed is not initialised, or the ranks have agreed before.
    """
    import torch

    from portakernel.agreement import agree as agree_on
    from portakernel.calling.devices import find_device
    from portakernel.deciding.following import Following

    now, accelerator = dispatcher(), torch.accelerator.current_accelerator(check_available=True)
    here = torch.device("cpu")
    if accelerator is not None:
        here = torch.device(accelerator.type, torch.accelerator.current_device_index())
    followed = Following(now.registry, now.routes, find_device(now.registry, here))
    doubts = [agree_on(followed, group), followed.lost_lock]
    _reroute()
    for doubt in filter(None, doubts):
        warnings.warn(doubt, ConfigWarning, stacklevel=callers_level())


def _follow(plan: PlannedSource | None, measured: MeasuredSource | None) -> None:
    routes = dispatcher().routes
    before = routes.plan, routes.measured
    routes.set(plan, measured)
    missed = _reroute()
    if missed and plan is not None and plan.locked:
        routes.set(*before)
        _reroute()
        raise PortakernelError(f"{plan.name} is locked, and could not be held: {_told(missed)}")
    if missed:
        text = f"{_told(missed)} Which of the choices for other values they follow is open"
        warnings.warn(text, ConfigWarning, stacklevel=callers_level())


def _reroute() -> dict[str, frozenset[str]]:
    """Has every op that is in use choose anew; by op the parameters that its calls cannot be told apart by any more."""
    now = dispatcher()
    if now.trace_token:
        now.refresh_trace_token()
    found = {caller.contract.op: caller.reroute() for caller in callers_so_far()}
    return {op: missed for op, missed in found.items() if missed}


def _told(missed: Mapping[str, frozenset[str]]) -> str:
    several = "; ".join(f"{op} by {', '.join(sorted(names))}" for op, names in sorted(missed.items()))
    return f"calls are not told apart: {several}. Load plans and measurements before an op's first use."
