"""Who asks for shadow verification: a policy file, held against its form, or a program."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import portakernel
from portakernel.deciding.policy_file import load_policy_file, read_drafts, resolve_drafts
from portakernel.deciding.shadow_wishes import NEEDS_KIT, ShadowWishes
from portakernel.errors import ArgumentValueError, MissingPackageError, PolicyFileError
from portakernel.runtime import dispatcher
from portakernel.shadow import process


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Any]:
    """What a policy file with this text says of shadow verification."""

    def read_text(text: str, name: str = "policy.yaml") -> Any:
        (tmp_path / name).write_text(f"schema_version: 1\n{text}", encoding="utf-8")
        return load_policy_file(tmp_path / name, dispatcher().registry).shadow

    return read_text


def test_a_file_says_how_often_how_much_and_what_follows(read, tmp_path):
    text = "shadow: {every: 2min, bytes: 64 KiB, share: 0.01, on_mismatch: demote, folder: wrong}\n"
    assert read(text) == ShadowWishes(
        120.0, 64 << 10, 0.01, "demote", str(tmp_path / "wrong"), "policy.yaml:2"
    )  # fmt: skip
    assert read("shadow: {share: 1}\n") == ShadowWishes(share=1.0, place="policy.yaml:2")
    elsewhere = tmp_path / "else" / "where"
    assert read(f"shadow: {{folder: {elsewhere}}}\n").folder == str(elsewhere)
    assert not elsewhere.parent.exists()
    assert read("prefer: torch\n") is None


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("30s", 30.0), ("1.5 s", 1.5), ("2min", 120.0), ("1h", 3600.0)]
)
def test_times_have_their_unit(read, text, seconds):
    assert read(f"shadow: {{every: {text}}}\n").every_s == seconds


A_TIME = "write a time above 0 with its unit, such as 30s, 500ms, 2min or 1h"
A_SIZE = "write a size above 0 with its unit, such as 256 MiB, 64 KiB or 4096 B"
A_SHARE = "write a share of the time above 0 and up to 1, such as 0.001"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("every: 30", f"every: found 30; {A_TIME}"),
        ("every: 0s", f"every: found '0s'; {A_TIME}"),
        ("every: 30 seconds", f"every: found '30 seconds'; {A_TIME}"),
        ("bytes: 256 MB", f"bytes: found '256 MB'; {A_SIZE}"),
        ("bytes: 1000", f"bytes: found 1000; {A_SIZE}"),
        ("share: 0.1 %", f"share: found '0.1 %'; {A_SHARE}"),
        ("share: 0", f"share: found 0; {A_SHARE}"),
        ("share: 1.5", f"share: found 1.5; {A_SHARE}"),
        ("on_mismatch: deny", "on_mismatch: found 'deny'; known: demote, report"),
        ("on_mismatch: demoted", "on_mismatch: found 'demoted'; did you mean 'demote'?"),
        ("folder: 3", "folder: found 3; write the path of a folder"),
        ("evry: 30s", "evry: unknown key; did you mean 'every'?"),
    ],
)
def test_another_value_is_told_with_its_place_and_what_is_accepted(read, tmp_path, text, problem):
    with pytest.raises(PolicyFileError) as raised:
        read(f"shadow:\n  {text}\n")
    assert raised.value.problems == (f"{tmp_path / 'policy.yaml'}:3: shadow.{problem}",)


def test_an_empty_section_is_told(read, tmp_path):
    with pytest.raises(PolicyFileError) as raised:
        read("shadow: {}\n")
    (problem,) = raised.value.problems
    assert problem == f"{tmp_path / 'policy.yaml'}:2: shadow: is empty; give every, bytes, share, on_mismatch, folder"


def test_of_several_files_the_last_that_speaks_of_it_decides(tmp_path):
    now = dispatcher()
    for name, text in (("a", "shadow: {share: 0.5}"), ("b", "shadow: {every: 1s}"), ("c", "prefer: torch")):
        (tmp_path / f"{name}.yaml").write_text(f"schema_version: 1\n{text}\n", encoding="utf-8")
    drafts = read_drafts([tmp_path / f"{name}.yaml" for name in "abc"])
    files = resolve_drafts(drafts, now.registry)
    before = now.process.files
    now.process.files = files
    try:
        assert now.process.shadow == ShadowWishes(every_s=1.0, place="b.yaml:2")
    finally:
        now.process.files = before


def without_the_kit(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "portakernel_kit" else find(name, *more)
    )


def test_without_the_kit_a_file_that_asks_for_it_is_not_accepted(read, tmp_path, monkeypatch):
    without_the_kit(monkeypatch)
    with pytest.raises(PolicyFileError) as raised:
        read("shadow: {every: 1s}\n")
    assert raised.value.problems == (f"{tmp_path / 'policy.yaml'}:2: shadow: {NEEDS_KIT}",)


def test_without_the_kit_a_program_that_asks_for_it_is_told(monkeypatch):
    without_the_kit(monkeypatch)
    with pytest.raises(MissingPackageError, match=rf"^{re.escape(NEEDS_KIT)}$"):
        portakernel.shadow.configure()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory, apart from the working directory, with a file and a link to nothing."""
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "file").touch()
    (folder / "link").symlink_to(folder / "nothing")
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.chdir(tmp_path)
    return folder


TAKES_FILES = "write the path of a folder that takes files, or of one that can be made"


@pytest.mark.parametrize(
    ("folder", "problem"),
    [
        ("~/file", "found '~/file': {home}/file is no folder"),
        ("home/file/wrong", "found 'home/file/wrong': {home}/file/wrong cannot be made: {home}/file is no folder"),
        ("~/link", "found '~/link': {home}/link cannot be made: {home}/link is a link to what is not there"),
        ("/dev/null", "found '/dev/null', which is no folder"),
        ("/proc/nope", "found '/proc/nope', which cannot be made: /proc takes none ({refusal})"),
        ("/proc", "found '/proc', which takes no files ({refusal})"),
    ],
)
def test_a_folder_that_takes_no_files_is_told_by_files_and_programs(read, tmp_path, home, folder, problem):
    with pytest.raises(OSError, match="nope") as refused:
        Path("/proc/nope").touch()
    refusal = refused.value.strerror
    problem = f"{problem.format(home=home, refusal=refusal)}; {TAKES_FILES}"
    with pytest.raises(PolicyFileError) as raised:
        read(f"shadow:\n  folder: {folder}\n")
    assert raised.value.problems == (f"{tmp_path / 'policy.yaml'}:3: shadow.folder: {problem}",)
    with pytest.raises(ArgumentValueError, match=rf"^shadow\.configure: folder: {re.escape(problem)}$"):
        portakernel.shadow.configure(folder=folder)
    assert process._process.worker is None


def test_a_tilde_is_the_home_directory_and_nothing_is_made(read, home, stopped):
    wanted = home / "some" / "wrong"
    assert read("shadow: {folder: ~/some/wrong}\n").folder == str(wanted)
    for folder in ("~/some/wrong", "home/some/wrong", wanted):
        portakernel.shadow.configure(every="1h", folder=folder)
        assert stopped.worker.sampler.wishes.folder == str(wanted)
    assert not wanted.parent.exists()


@pytest.mark.parametrize(
    ("wishes", "problem"),
    [
        ({"folder": ""}, "folder: found ''; write the path of a folder"),
        ({"folder": 3}, "folder: found 3; write the path of a folder"),
        ({"folder": b"/tmp"}, "folder: found b'/tmp'; write the path of a folder"),
        ({"folder": "/tmp/\0"}, "folder: found '/tmp/\\x00'; write the path of a folder"),
        ({"every": "soon"}, f"every: found 'soon'; {A_TIME}"),
        ({"every": 0}, f"every: found '0s'; {A_TIME}"),
        ({"bytes": "much"}, f"bytes: found 'much'; {A_SIZE}"),
        ({"share": 2}, f"share: found 2; {A_SHARE}"),
        ({"on_mismatch": "stop"}, "on_mismatch: found 'stop'; known: demote, report"),
    ],
)
def test_a_program_s_values_are_held_to_the_same(wishes, problem):
    with pytest.raises(ArgumentValueError, match=rf"^shadow\.configure: {re.escape(problem)}$"):
        portakernel.shadow.configure(**wishes)
    assert process._process.worker is None


@pytest.fixture
def stopped(monkeypatch):
    """The process's own shadow verification, off before and after."""
    made = process._Process()
    monkeypatch.setattr(process, "_process", made)
    yield made
    made.stop()


def test_a_program_configures_and_stops_it(stopped):
    portakernel.shadow.configure(every=3600, bytes=1 << 20, share=0.5)
    worker = stopped.worker
    assert worker.sampler.wishes == ShadowWishes(
        3600.0, 1 << 20, 0.5, place="portakernel.shadow.configure"
    )  # fmt: skip
    assert portakernel.shadow.report().state == "shadow verification is on (portakernel.shadow.configure)"
    portakernel.shadow.configure(every=3600, bytes=1 << 20, share=0.5)
    assert stopped.worker is worker
    portakernel.shadow.stop()
    assert stopped.worker is None
    assert not worker._thread.is_alive()
    assert portakernel.shadow.report().state == "shadow verification is off"


def test_files_are_followed_until_others_come_and_a_program_goes_before_them(stopped):
    wishes = ShadowWishes(every_s=3600.0, place="policy.yaml:2")
    process.follow(wishes)
    first = stopped.worker
    assert first.sampler.wishes is wishes
    process.follow(wishes)
    assert stopped.worker is first
    portakernel.shadow.stop()
    process.follow(wishes)  # as each op does that is used for the first time
    assert stopped.worker is None
    process.follow(wishes, anew=True)
    assert stopped.worker is not None
    portakernel.shadow.configure(every="1h")
    configured = stopped.worker
    process.follow(None, anew=True)
    assert stopped.worker is configured


def test_no_thread_is_there_where_nobody_asks(python):
    program = """
import sys, threading, torch, portakernel
from portakernel import ops
ops.add(torch.ones(2), torch.ones(2))
print([thread.name for thread in threading.enumerate()], "portakernel.shadow.process" in sys.modules)
"""
    done = python("-c", program)
    assert (done.stdout, done.stderr) == ("['MainThread'] False\n", "")
