"""What is committed works on any machine: it names no index that packages come from, and no path of one machine."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

FORBIDDEN = {
    "an option that chooses a package index": re.compile(r"--(?:extra-)?index-url|--find-links|--trusted-host"),
    "the address of a package index": re.compile(
        r"https?://[^\s/]*(?:pypi|pythonhosted|npmjs|registry|mirror)|https?://\S+/(?:simple|whl)\b"
    ),
    "a path of one machine": re.compile(r"(?<![\w.~}/-])/(?:root|work|opt|home/\w+|Users/\w+)/\w"),
}
# Names places of installations that a probe or a reader knows, by its vendor's documentation.
KNOWN_PLACES = re.compile(r"/opt/(?:rocm|intel|nvidia)\b")


def _committed_files() -> list[Path]:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def test_committed_text_names_no_package_index_and_no_path_of_one_machine() -> None:
    found = []
    for path in _committed_files():
        if path == Path(__file__).resolve():
            continue
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue
        found += [
            f"{path.relative_to(ROOT)}:{number}: {what}: {match[0]}"
            for number, line in enumerate(lines, 1)
            for what, pattern in FORBIDDEN.items()
            if (match := pattern.search(KNOWN_PLACES.sub("", line)))
        ]
    assert not found, "\n".join(found)


def test_every_constraint_is_exact() -> None:
    pins = [
        line for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines() if not line.startswith("#")
    ]
    assert pins
    assert [pin for pin in pins if not re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][0-9A-Za-z.]*", pin)] == []
