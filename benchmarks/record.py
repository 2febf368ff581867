"""Writes a benchmark's results: JSON with machine, versions and date, and the table as it was printed, in Markdown."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

_PACKAGES = ("portakernel", "torch", "triton", "transformers", "liger-kernel", "comfy-kitchen", "plum-dispatch")


def circumstances(device: str) -> dict[str, Any]:
    """What has to be known to compare a figure with another."""
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "device": _device_name(device),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": versions,
    }


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else "CPU"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor())


def write(folder: Path, name: str, device: str, results: Mapping[str, Any], table: Table, note: str = "") -> None:
    """``folder/name-device.json`` and ``.md``, with ``note`` under the table."""
    folder.mkdir(parents=True, exist_ok=True)
    found = circumstances(device)
    stem = f"{name}-{found['device'].lower().replace(' ', '-')}"
    document = {"circumstances": found, **results}
    (folder / f"{stem}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    heads = [str(column.header) for column in table.columns]
    rows = zip(*(list(column.cells) for column in table.columns), strict=True)
    versions = ", ".join(f"{package} {version}" for package, version in found["versions"].items())
    machine = f"{found['device']}; {found['processor']}, {found['cores']} cores"
    text = [
        f"# {table.title}",
        "",
        f"{machine}; Python {found['python']}; {versions}; {found['date']}.",
        "",
        "| " + " | ".join(heads) + " |",
        "|" + "---|" * len(heads),
        *("| " + " | ".join(str(cell) for cell in row) + " |" for row in rows),
        *(("", note) if note else ()),
    ]
    (folder / f"{stem}.md").write_text("\n".join(text) + "\n", encoding="utf-8")
