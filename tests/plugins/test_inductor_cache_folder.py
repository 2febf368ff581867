"""Inductor's cache directory is used where nobody else can write it, and a private one in the place of any other."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from portakernel.claims.capability import ReasonCode
from portakernel.deciding.readiness import Usable
from portakernel.host.cache_folder import CacheWarning
from portakernel.words.target import Device, Target
from portakernel_plugins.inductor import cache_folder, probe
from portakernel_plugins.inductor.cache_folder import settle

INDUCTOR, TRITON = "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"
STRANGER = 54321


@pytest.fixture
def forgotten(monkeypatch) -> Iterator[list[int]]:
    """As in a process that has settled nothing; how often Inductor was told to forget its files."""
    times: list[int] = []
    monkeypatch.setitem(sys.modules, "torch._inductor.utils", SimpleNamespace(clear_caches=lambda: times.append(1)))
    for one in (cache_folder.FOLDER, cache_folder._TRITON):
        monkeypatch.setattr(one, "_settled", "")
        monkeypatch.setattr(one, "notes", [])
    return times


@pytest.fixture
def folder(tmp_path, monkeypatch, forgotten) -> Path:
    """The directory that Inductor is told to use, and a temporary one."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv(INDUCTOR, str(tmp_path / "cache"))
    monkeypatch.delenv(TRITON, raising=False)
    return tmp_path / "cache"


def test_a_directory_of_ones_own_is_used_and_nothing_is_said(folder, forgotten):
    assert settle() is None
    assert os.environ[INDUCTOR] == str(folder)
    assert TRITON not in os.environ
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert forgotten == []


@pytest.mark.parametrize(
    ("spoil", "says", "wanted"),
    [
        (lambda path: path.chmod(0o777), "can be written by everybody", "that nobody else can write"),
        (lambda path: path.chmod(0o1777), "can be written by everybody", "that nobody else can write"),
        (
            lambda path: (path.chmod(0o755), (path / "ab").mkdir(), (path / "ab").chmod(0o777)),
            "holds ab, which can be written by everybody",
            "that nobody else can write",
        ),
        (
            lambda path: (path.rmdir(), path.touch()),
            "is no directory (File exists)",
            "on a local disk that can be written",
        ),
        pytest.param(
            lambda path: os.chown(path, STRANGER, -1),
            f"belongs to user {STRANGER}",
            "that nobody else can write",
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user"),
        ),
    ],
    ids=["writable", "sticky", "entry", "file", "another's"],
)
def test_a_private_directory_serves_in_the_place_of_any_other_and_it_is_said_once(
    folder, forgotten, spoil, says, wanted
):
    folder.mkdir(mode=0o755)
    spoil(folder)
    with pytest.warns(CacheWarning) as warned:
        assert settle() is None
    private = Path(os.environ[INDUCTOR])
    assert private.parent == Path(tempfile.gettempdir())
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    note = (
        f"Inductor's cache directory {folder} {says}: {private} serves in its place, and goes when this process ends;"
        f" set TORCHINDUCTOR_CACHE_DIR to a directory {wanted}"
    )
    assert [str(one.message) for one in warned] == [note]
    assert forgotten == [1]
    assert settle() is None
    assert os.environ[INDUCTOR] == str(private)
    assert probe.ready(Device(Target("apple", "m1"), "M1", "mps")) == Usable([note])


def test_the_folder_in_tmp_that_everybody_can_guess_is_looked_at(folder, monkeypatch, tmp_path):
    monkeypatch.delenv(INDUCTOR)
    guessed = tmp_path / "torchinductor_user"
    guessed.mkdir()
    guessed.chmod(0o777)
    monkeypatch.setattr(cache_folder.FOLDER, "default", lambda: str(guessed))
    with pytest.warns(CacheWarning, match=f"^Inductor's cache directory {guessed} can be written by everybody: "):
        assert settle() is None
    assert Path(os.environ[INDUCTOR]).parent == Path(tempfile.gettempdir())


def test_tritons_is_looked_at_too_where_it_is_named(folder, monkeypatch, tmp_path):
    triton = tmp_path / "triton"
    triton.mkdir()
    triton.chmod(0o777)
    monkeypatch.setenv(TRITON, str(triton))
    with pytest.warns(CacheWarning, match=f"^Triton's cache directory {triton} can be written by everybody: "):
        assert settle() is None
    assert os.environ[INDUCTOR] == str(folder)
    assert Path(os.environ[TRITON]).parent == Path(tempfile.gettempdir())


def test_without_any_directory_nothing_is_built(folder, monkeypatch):
    folder.mkdir()
    folder.chmod(0o777)
    Path(tempfile.gettempdir()).chmod(0o777)
    rejection = settle()
    assert rejection is not None
    assert rejection.code is ReasonCode.PROBE_FAILED
    temporary = tempfile.gettempdir()
    assert rejection.text == (
        f"Inductor's cache directory {folder} can be written by everybody, and {temporary}, which would take its place,"
        f" cannot be written (what is in it is below {temporary}, which can be written by everybody); make room, or set"
        " TORCHINDUCTOR_CACHE_DIR to a directory that nobody else can write"
    )
    assert os.environ[INDUCTOR] == str(folder)


@pytest.mark.parametrize("mode", [0o700, 0o777])
def test_headers_are_precompiled_where_nobody_else_can_write_them(monkeypatch, tmp_path, mode):
    """Inductor keeps them in its default folder, wherever its directory is."""
    guessed = tmp_path / "torchinductor_user"
    monkeypatch.setattr(cache_folder, "_default", lambda: str(guessed))
    if mode == 0o777:
        guessed.mkdir()
        guessed.chmod(mode)
    assert cache_folder.settings() == ({} if mode == 0o700 else {"cpp_cache_precompile_headers": False})
    assert stat.S_IMODE(guessed.stat().st_mode) == mode
