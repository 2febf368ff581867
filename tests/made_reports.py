"""Reports made for tests: of parts as they are, but for what a test is about."""

from __future__ import annotations

from typing import Any

from portakernel.report.content import DeviceFacts, Report, Served, StoreState, Workload

REQUEST = {"phase": "inference", "dtypes": {}, "dims": {}, "features": {}, "formats": {}}


def served(calls: int = 1, **more: Any) -> Served:
    """A kind of call that a kernel serves by its priority, unless ``more`` says otherwise."""
    told: dict[str, Any] = {
        "op": "add", "phase": "inference", "target": "nvidia:sm_90", "said": "add on nvidia:sm_90", "request": REQUEST,
        "calls": calls, "share": 1.0, "kernel": "acme.add", "why": "highest priority 7", "source": "priority",
        "by_priority": "acme.add", "measured": "acme.add", "measured_why": "0.9 of the time", "rivals": 2,
        "explain": "portakernel explain add",
    }  # fmt: skip
    return Served(**{**told, **more})


def workload(*decisions: Served, file: str = "calls.yaml") -> Workload:
    """A recording of these calls."""
    return Workload(file, sum(one.calls for one in decisions), len(decisions), (), decisions)


def report(**more: Any) -> Report:
    """A report of one device, one store and nothing else, unless ``more`` says otherwise."""
    told: dict[str, Any] = {
        "portakernel": "1.0", "made_at": "2026-11-27T00:00:00+00:00",
        "host": {"system": "Linux", "machine": "x86_64", "python": "3.11"}, "versions": {"torch": "2.11"},
        "judged_for": None, "devices": (DeviceFacts("cpu:x86_64", "a CPU", 2, "cpu"),), "workload": None, "plan": None,
        "stores": (StoreState("store", False, 1, 1, 0, 0),), "broken": (), "help": (),
    }  # fmt: skip
    return Report(**{**told, **more})
