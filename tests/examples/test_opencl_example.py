"""The example of a vendor from outside, examples/opencl_backend, passes its own tests where it is installed."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "opencl_backend"


def _missing() -> str | None:
    if importlib.util.find_spec("pyopencl") is None:
        return "pyopencl"
    names = {entry_point.name for entry_point in importlib.metadata.entry_points(group="portakernel")}
    return None if "opencl" in names else "the installed examples/opencl_backend"


@pytest.mark.skipif(_missing() is not None, reason=f"lacks {_missing()}")
@pytest.mark.skipif(not EXAMPLE.is_dir(), reason="the examples are not part of this distribution")
def test_the_opencl_example_passes_its_own_tests(tmp_path: Path) -> None:
    # A process of its own: drivers of OpenCL start threads, and pyopencl reads its settings when it is imported.
    ours = ("PORTAKERNEL_", "PYTEST_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    environment |= {"POCL_CACHE_DIR": str(tmp_path), "PYOPENCL_NO_CACHE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", str(EXAMPLE)]
    result = subprocess.run(command, cwd=EXAMPLE, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def _public_modules() -> set[str]:
    """The modules that docs/writing-a-kernel.md names as the plugin API."""
    text = (ROOT / "docs" / "writing-a-kernel.md").read_text(encoding="utf-8")
    (section,) = re.findall(r"## What a package imports\n(.*?)\n## ", text, re.DOTALL)
    return set(re.findall(r"`(portakernel(?:\.[a-z_.]+)?)`", section))


def _imported(source: str) -> set[str]:
    """The modules of portakernel that a source imports."""
    found = set[str]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= (
                {f"portakernel.{alias.name}" for alias in node.names} if node.module == "portakernel" else {node.module}
            )
    return {module for module in found if module.partition(".")[0] == "portakernel"}


@pytest.mark.skipif(not EXAMPLE.is_dir(), reason="the examples are not part of this distribution")
def test_packages_from_outside_import_the_plugin_api_alone() -> None:
    sources = {path: path.read_text(encoding="utf-8") for path in sorted(EXAMPLE.rglob("*.py"))}
    for path in sorted((ROOT / "portakernel" / "scaffold" / "templates").rglob("*.py.template")):
        sources[path] = path.read_text(encoding="utf-8").replace("$module", "module").replace("$name", "name")
    assert len(sources) > 15
    public = _public_modules()
    assert "portakernel.hookspecs" in public
    strangers = {(path.name, module) for path, source in sources.items() for module in _imported(source) - public}
    assert strangers == set()
