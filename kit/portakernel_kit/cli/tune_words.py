"""What the options of ``portakernel tune`` ask for: how long, where and which calls; and which do not go together."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from portakernel.cli.calls_file import calls_on, load_calls
from portakernel.cli.list_kernels import chosen_kernels
from portakernel.contracts import contracts
from portakernel.deciding.explaining import first_device
from portakernel.errors import ArgumentValueError
from portakernel.registry.registry import Registry
from portakernel.runtime import dispatcher
from portakernel.tuning.key import Regime
from portakernel.words.target import Device, Target
from portakernel_kit.cli.bench.requests import Words
from portakernel_kit.tune.job import Facts, Job
from portakernel_kit.tune.work import jobs_of_calls, jobs_of_questions

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def seconds_of(text: str) -> float:
    """A time as ``90s``, ``10m`` or ``2h``.

    Raises:
        ArgumentValueError: it is none, or no time at all.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh])", text.strip())
    if found is None:
        raise ArgumentValueError(f"--budget {text!r} is no time; give a number and s, m or h, such as 10m")
    if not (seconds := float(found[1]) * _UNITS[found[2]]):
        raise ArgumentValueError(f"--budget {text!r} leaves no time to measure; give more than 0, such as 10m")
    return seconds


def refuse_beside_compact(given: Mapping[str, Any]) -> None:
    """Refuses what ``--compact`` would pass over; ``given`` is by option what was given, empty where it was not.

    Raises:
        ArgumentValueError: something was.
    """
    if others := [name for name, value in given.items() if value]:
        text = f"give it alone, without {' and '.join(others)}"
        raise ArgumentValueError(f"--compact rewrites what is kept and measures nothing; {text}")


def devices_of(registry: Registry, names: Sequence[str]) -> tuple[Device, ...]:
    """The devices to measure on: those named, or with ``all`` every one of the first one's vendor.

    Raises:
        UnknownNameError: there is no such device.
        ArgumentValueError: they are of several vendors, whose calls are timed in other ways; or some are named beside
            all of them.
    """
    first = first_device(registry)
    if "all" in names:
        if others := [name for name in names if name != "all"]:
            raise ArgumentValueError(f"--device all is every device; leave out --device {' and '.join(others)}")
        alike = (d for d in registry.devices if d.target.vendor == first.target.vendor and not d.attached)
        return tuple(device for device in alike if device.torch_device is not None)
    found = tuple(dict.fromkeys(registry.device(name) for name in names)) or (first,)
    if len(vendors := sorted({device.target.vendor for device in found})) > 1:
        raise ArgumentValueError(f"--device names devices of {' and '.join(vendors)}; tune each vendor's by itself")
    return found


def device_of_fleet(workers: Mapping[str, Facts | str]) -> Device:
    """What calls are drawn and timed for on devices of other machines: the first that measures, and those like it.

    Raises:
        ArgumentValueError: none measures, or they are of several vendors, whose calls are timed in other ways.
    """
    targets = [Target.parse(facts.target) for facts in workers.values() if not isinstance(facts, str)]
    if not targets:
        told = "; ".join(f"{device}: {reason}" for device, reason in workers.items())
        raise ArgumentValueError(f"no device can measure: {told}")
    if len(vendors := sorted({target.vendor for target in targets})) > 1:
        raise ArgumentValueError(f"the devices are of {' and '.join(vendors)}; tune each vendor's by itself")
    return Device(targets[0], str(targets[0]), "cpu" if targets[0].vendor == "cpu" else "cuda:0")


def jobs_of(
    calls: Path | None,
    ops: Sequence[str] | None,
    words: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]],
    drawn: int,
    seed: int,
    where: Device,
    regime: Regime,
    *,
    training: bool,
) -> list[Job]:
    """The jobs that the command line asks for; ``words`` are those of ``--shape``, ``--dtype`` and ``--set``.

    Raises:
        UnknownNameError, ArgumentTypeError, ArgumentValueError: a name that nothing has, words that make no call, or
            none that can be measured on ``where``, as those of a file that are on another device.
        ManifestError: ``calls`` cannot be accepted.
    """
    for op in ops or ():
        chosen_kernels(dispatcher().registry, op, None)  # a name that nothing has is told before torch is loaded
    if calls is not None:
        return _jobs_of_file(calls, ops, where, regime, seed, others=any(words) or bool(drawn), training=training)
    asked = list(dict.fromkeys(ops or (op for op, contract in contracts().items() if contract.grid is not None)))
    questions = Words(*words, drawn=drawn, seed=seed).questions(asked, where)
    on_cpu = where.torch_device == "cpu" and not words[0]
    fitting = [q for q in questions if not (on_cpu and q.too_large(on_cpu=True, free_bytes=None))]
    if not fitting:
        text = f"none of {len(questions)} calls to {', '.join(asked)} is of a size for {where.name}"
        raise ArgumentValueError(f"tune: {text}; give sizes with --shape, or another --device")
    return jobs_of_questions(fitting, regime, training=training, seed=seed)


def _jobs_of_file(
    calls: Path, ops: Sequence[str] | None, where: Device, regime: Regime, seed: int, *, others: bool, training: bool
) -> list[Job]:
    if others:
        raise ArgumentValueError(f"tune: {calls} lists whole calls; leave out --shape, --dtype, --set and --drawn")
    if training:
        raise ArgumentValueError(f"tune: calls in {calls} say `training: true` themselves; leave out --training")
    listed = load_calls(calls)
    there = sorted({call.op for call in listed})
    if ops and (missing := [op for op in ops if op not in there]):
        raise ArgumentValueError(f"tune: {calls} lists no call of {missing[0]}; it has {', '.join(there)}")
    wanted = calls_on((call for call in listed if not ops or call.op in ops), where, calls)
    return jobs_of_calls(wanted, where.target, regime, seed)
