"""What a machine lacks skips with a reason, and fails where nothing may lack; for want of a GPU tests skip anywhere."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"
TESTS = {
    "test_tool.py": "import pytest\n\ndef test_tool():\n    pytest.skip('lacks clang 17 or later')\n",
    "test_module.py": (
        "import pytest\n\npytest.importorskip('a_module_that_is_nowhere')\n\ndef test_module():\n    pass\n"
    ),
    "test_marked.py": (
        "import pytest\n\n@pytest.mark.skipif(True, reason='lacks a browser')\ndef test_marked():\n    pass\n"
    ),
    "test_gpu.py": "import pytest\n\ndef test_gpu():\n    pytest.skip('needs a GPU')\n",
    "test_expected.py": (
        "import pytest\n\n@pytest.mark.xfail(reason='lacks sense')\ndef test_expected():\n    assert False\n"
    ),
    "test_passes.py": "def test_passes():\n    pass\n",
}


@pytest.mark.parametrize(
    ("required", "summary"),
    [("", "1 passed, 4 skipped, 1 xfailed"), ("1", "1 failed, 1 passed, 1 skipped, 1 xfailed, 2 errors")],
)
def test_a_skip_for_what_a_machine_lacks_fails_where_nothing_may_lack(
    tmp_path: Path, required: str, summary: str, python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    for name, source in {**TESTS, "conftest.py": CONFTEST.read_text(encoding="utf-8")}.items():
        (tmp_path / name).write_text(source, encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment |= {"TESTS_REQUIRE_ALL": required, "PYTHONPATH": str(CONFTEST.parent)}
    command = ["-m", "pytest", "-p", "no:cacheprovider", "-n0", "--continue-on-collection-errors"]
    command += ["-c", os.devnull, "--rootdir", str(tmp_path), str(tmp_path)]
    ran = python(*command, env=environment, timeout=60)
    assert summary in ran.stdout, ran.stdout
    if required:
        assert "test_tool.py:4: this machine lacks clang 17 or later" in ran.stdout
        assert "this machine could not import 'a_module_that_is_nowhere'" in ran.stdout
