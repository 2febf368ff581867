"""The example of a vendor from outside, examples/opencl_backend, passes its own tests where it is installed."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "opencl_backend"


def _missing() -> str | None:
    if importlib.util.find_spec("pyopencl") is None:
        return "pyopencl is not installed"
    names = {entry_point.name for entry_point in importlib.metadata.entry_points(group="portakernel")}
    return None if "opencl" in names else "examples/opencl_backend is not installed"


@pytest.mark.skipif(_missing() is not None, reason=str(_missing()))
@pytest.mark.skipif(not EXAMPLE.is_dir(), reason="the examples are not part of this distribution")
def test_the_opencl_example_passes_its_own_tests(tmp_path: Path) -> None:
    # A process of its own: drivers of OpenCL start threads, and pyopencl reads its settings when it is imported.
    ours = ("PORTAKERNEL_", "PYTEST_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    environment |= {"POCL_CACHE_DIR": str(tmp_path), "PYOPENCL_NO_CACHE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", str(EXAMPLE)]
    result = subprocess.run(command, cwd=EXAMPLE, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
