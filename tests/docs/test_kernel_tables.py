"""The README's table of kernels is the one that the committed results give."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tables():
    spec = importlib.util.spec_from_file_location("kernel_tables", ROOT / "benchmarks/kernel_tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_readme_shows_the_committed_results(tables):
    files = sorted((ROOT / "benchmarks/results").glob("bench-nvidia-h200-*.json"))
    results = [json.loads(path.read_text()) for path in files]
    text = (ROOT / "README.md").read_text()
    shown = text.partition(tables.BEGIN)[2].partition(tables.END)[0].strip().splitlines()
    core = [cell for cell in tables.latest(results) if tables.is_core(cell)]
    assert shown == [tables.where(results), "", *tables.tables(core)]


def test_a_kernel_that_is_wrong_is_no_peer_and_the_best_of_a_plugin_counts(tables):
    def kernel(name, time, status="timed"):
        return {"kernel": name, "latency_us": time, "status": status, "chosen": False}

    kernels = [kernel("triton.add", 2.0) | {"chosen": True}, kernel("torch.add", 5.0), kernel("torch.add_fast", 3.0)]
    kernels += [kernel("liger.add", 0.1, "wrong")]
    cell = {"op": "add", "case": "4×4", "phase": "forward", "kernels": kernels, "copy_us": 1.0, "bound": "memory"}
    *_, row = tables.table([cell])
    assert row == "| add 4×4 | 2.0 | 3.0 | 50 % | 1.50 |"
