"""The example of a vendor from outside, examples/opencl_backend, passes its own tests where it is installed."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import portakernel
from portakernel_kit.cli.validate.allowed_imports import past_the_door

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "opencl_backend"


def _missing() -> str | None:
    if importlib.util.find_spec("pyopencl") is None:
        return "pyopencl"
    names = {entry_point.name for entry_point in importlib.metadata.entry_points(group="portakernel")}
    return None if "opencl" in names else "the installed examples/opencl_backend"


@pytest.mark.skipif(_missing() is not None, reason=f"lacks {_missing()}")
@pytest.mark.skipif(not EXAMPLE.is_dir(), reason="the examples are not part of this distribution")
def test_the_opencl_example_passes_its_own_tests(python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    # A process of its own: drivers of OpenCL start threads, and pyopencl reads its settings when it is imported.
    ours = ("PORTAKERNEL_", "PYTEST_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    environment |= {"PYOPENCL_NO_CACHE": "1"}
    probe = "from opencl_backend.probe import find, ready; print(*(r.text for d in find() if (r := ready(d))))"
    asked = python("-c", probe, env=environment)
    assert asked.returncode == 0, asked.stderr
    if "unknown target CPU" in asked.stdout:
        pytest.skip(f"lacks an OpenCL driver that knows this CPU (Debian: pocl-opencl-icd): {asked.stdout.strip()}")
    command = ["-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", str(EXAMPLE)]
    result = python(*command, cwd=EXAMPLE, env=environment, forks=True)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.skipif(not EXAMPLE.is_dir(), reason="the examples are not part of this distribution")
def test_packages_from_outside_import_the_plugin_api_alone(tmp_path: Path) -> None:
    for path in (ROOT / "portakernel" / "scaffold" / "templates").rglob("*.py.template"):
        source = path.read_text(encoding="utf-8").replace("$module", "module").replace("$name", "name")
        place = tmp_path / path.relative_to(ROOT).with_suffix("")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(source)
    assert len([*tmp_path.rglob("*.py"), *EXAMPLE.rglob("*.py")]) > 15
    problems = [*past_the_door(tmp_path, portakernel.PLUGIN_API), *past_the_door(EXAMPLE, portakernel.PLUGIN_API)]
    assert list(map(str, problems)) == []
