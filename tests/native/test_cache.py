"""The cache on disk: altered entries, full disks, other users, and its size."""

from __future__ import annotations

import errno
import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from portakernel.native import CodeObject, KernelFacts, build, code_cache, entry
from portakernel.native.code_cache import Cache, CacheWarning, cache
from portakernel.target import Target

HOPPER = Target("nvidia", "sm_90")


def made(number: int = 0, size: int = 100) -> CodeObject:
    facts = KernelFacts("scale<float, 4>", "_Z5scale", 8, 16, 32, ((0, 8), (8, 4)))
    key = f"{number:040x}-{0:012x}"
    code = bytes([number]) * size
    return CodeObject(key, "code object", HOPPER, "nvcc 13.0", (facts,), None, code, "a warning", 1.5, "ld.global.v4")


@pytest.fixture
def kept(cache_folder) -> Cache:
    return Cache(cache_folder, 1 << 20)


def fails(monkeypatch, number, *, roots=None):
    """From now on nothing can be written into the folders (any, where none is given)."""
    real = entry.write

    def write(folder: Path, *rest: object) -> None:
        (folder / "code").write_bytes(b"half")
        if roots is None or folder.parent in roots:
            raise OSError(number, os.strerror(number), str(folder))
        real(folder, *rest)

    monkeypatch.setattr(entry, "write", write)


def test_what_is_kept_is_what_was_made(kept):
    stored = kept.store(made(), "scale.cu")
    found = kept.find(made().key)
    assert found == replace(made(), path=stored.path, seconds=0.0)
    assert (found.code, found.assembly, found.log) == (made().code, "ld.global.v4", "a warning")
    assert kept.find(made(1).key) is None


def test_only_digests_and_bytes_are_read_and_nothing_is_unpickled(kept):
    folder = kept.store(made(), "scale.cu").path.parent
    assert sorted(path.name for path in folder.iterdir()) == ["assembly.z", "code", "entry.json"]
    assert json.loads((folder / "entry.json").read_text())["kernels"][0]["registers"] == 8


@pytest.mark.parametrize(
    ("name", "alter", "says"),
    [
        ("code", lambda content: content[:-1], "code was cut short or altered: its digest is another"),
        ("code", lambda content: b"\x01" + content[1:], "code was cut short or altered: its digest is another"),
        ("code", lambda content: b"", "code was cut short or altered: its digest is another"),
        ("assembly.z", lambda content: content[:-1], "assembly.z was cut short or altered: its digest is another"),
        ("entry.json", lambda content: content[:40], "entry.json is no entry's head"),
        ("entry.json", lambda content: b"[]", "entry.json is no entry's head"),
        (
            "entry.json",
            lambda content: content.replace(b'"registers": 8', b'"registers": 9'),
            "entry.json was altered: its digest is another",
        ),
    ],
    ids=["cut", "altered", "emptied", "assembly", "head cut", "head replaced", "head altered"],
)
def test_an_altered_entry_is_discarded_and_built_anew(source, nvcc, runs, name, alter, says):
    options = nvcc()
    first = build(source, HOPPER, options, ("scale",))
    folder = first.path.parent
    (folder / name).write_bytes(alter((folder / name).read_bytes()))
    assert [found.broken for found in cache().entries()] == [says]
    with pytest.warns(
        CacheWarning, match=f"^{re.escape(str(folder))} is discarded, to be built anew: {re.escape(says)}$"
    ):
        again = build(source, HOPPER, options, ("scale",))
    assert runs() == 2
    assert (again.code, again.path) == (first.code, first.path)
    assert [found.broken for found in cache().entries()] == [""]


@pytest.mark.parametrize("name", ["code", "assembly.z", "entry.json"])
def test_an_entry_that_lost_a_file_is_built_anew(source, nvcc, runs, name):
    options = nvcc()
    first = build(source, HOPPER, options, ("scale",))
    (first.path.parent / name).unlink()
    assert cache().entries()[0].broken == f"{name} is missing"
    with pytest.warns(CacheWarning, match=f"{name} is missing$"):
        assert build(source, HOPPER, options, ("scale",)).code == first.code
    assert runs() == 2
    assert [found.broken for found in cache().entries()] == [""]


def test_an_entry_under_anothers_name_is_discarded(kept):
    folder = kept.store(made(), "scale.cu").path.parent
    folder.rename(folder.with_name(made(1).key))
    with pytest.warns(CacheWarning, match=r"entry\.json is of another entry or version$"):
        assert kept.find(made(1).key) is None
    assert kept.entries() == []


def test_what_unpacks_to_more_than_a_compiler_writes_is_cut(kept, monkeypatch):
    kept.store(replace(made(), assembly="x" * 1000), "scale.cu")
    monkeypatch.setattr(entry, "_MOST_ASSEMBLY_BYTES", 10)
    assert kept.find(made().key).assembly == "x" * 10


# --- its size ------------------------------------------------------------------------------------------------------


def test_what_was_used_longest_ago_goes_first(cache_folder):
    kept = Cache(cache_folder, 400_000)
    for number in range(3):
        folder = kept.store(made(number, 100_000), "scale.cu").path.parent
        os.utime(folder / "entry.json", (number, number))
    assert kept.find(made(0).key) is not None  # and is the one used last now
    kept.store(made(3, 100_000), "scale.cu")
    kept.store(made(4, 100_000), "scale.cu")
    assert {found.key for found in kept.entries()} == {made(number).key for number in (0, 3, 4)}
    assert sum(found.size_bytes for found in kept.entries()) <= 400_000


def test_what_was_just_built_stays_though_it_is_larger_than_all_that_is_allowed(cache_folder):
    kept = Cache(cache_folder, 1000)
    kept.store(made(0), "scale.cu")
    kept.store(made(1, 10_000), "scale.cu")
    assert [found.key for found in kept.entries()] == [made(1).key]


def test_what_a_writer_left_behind_that_has_ended_goes_after_a_day(kept, cache_folder):
    for name, age in ((".writing-old", 2 * 86400), (".writing-new", 60)):
        (cache_folder / name).mkdir(parents=True)
        (cache_folder / name / "code").write_bytes(b"half")
        then = os.stat(cache_folder).st_mtime - age
        os.utime(cache_folder / name, (then, then))
    kept.store(made(), "scale.cu")
    assert [path.name for path in cache_folder.glob(".writing-*")] == [".writing-new"]


def test_the_environment_says_where_it_is_and_how_large(monkeypatch, tmp_path):
    monkeypatch.setenv("PORTAKERNEL_CACHE_MIB", "7")
    assert (cache().folder, cache().limit_bytes) == (tmp_path / "cache", 7 << 20)
    monkeypatch.delenv("PORTAKERNEL_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache().folder == tmp_path / "xdg" / "portakernel"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache().folder == tmp_path / "home" / ".cache" / "portakernel"


# --- where it cannot be written ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.ENOSPC, "is full (No space left on device)"),
        (errno.EROFS, "is read-only (Read-only file system)"),
        (errno.EACCES, "cannot be written (Permission denied)"),
        (errno.EIO, "cannot be used (Input/output error)"),
    ],
)
def test_a_private_folder_takes_the_place_of_one_that_cannot_be_written(
    kept, cache_folder, monkeypatch, temporary, number, reason
):
    kept.store(made(0), "scale.cu")
    fails(monkeypatch, number, roots={cache_folder})
    with pytest.warns(CacheWarning) as told:
        stored = kept.store(made(1), "scale.cu")
    private = stored.path.parents[1]
    assert private.parent == temporary
    assert private.stat().st_mode & 0o777 == 0o700
    text = f"the cache of compiled kernels {cache_folder} {reason}: {private} serves in its place, and goes when this"
    text += " process ends; set PORTAKERNEL_CACHE_DIR to a folder on a local disk that can be written"
    assert [str(warning.message) for warning in told] == [text]
    assert kept.notes == [text]
    assert stored.path.read_bytes() == made(1).code
    assert kept.find(made(1).key) is not None
    assert kept.find(made(0).key) is not None  # what the other holds is read on
    assert list(cache_folder.glob(".writing-*")) == []
    assert kept.store(made(2), "scale.cu").path.parents[1] == private


def test_where_nothing_can_be_written_the_code_serves_all_the_same(kept, monkeypatch, temporary):
    fails(monkeypatch, errno.ENOSPC)
    with pytest.warns(CacheWarning) as told:
        stored = kept.store(made(), "scale.cu")
    assert (stored.path, stored.code) == (None, made().code)
    assert str(told[-1].message).startswith(f"the cache of compiled kernels {temporary}")
    assert "kernels are compiled anew in each process" in str(told[-1].message)
    assert list(temporary.rglob(".writing-*")) == []


def test_a_build_survives_a_full_disk(source, nvcc, cache_folder, monkeypatch, temporary):
    options = nvcc()
    fails(monkeypatch, errno.ENOSPC)
    with pytest.warns(CacheWarning):
        code = build(source, HOPPER, options, ("scale",))
    assert code.kernel("scale").registers == 8
    assert list(cache_folder.glob("*-*")) == []


def test_a_file_in_the_folders_place(tmp_path, temporary):
    (tmp_path / "file").write_text("")
    kept = Cache(tmp_path / "file", 1 << 20)
    with pytest.warns(CacheWarning, match="is no directory"):
        assert kept.store(made(), "scale.cu").path is not None
    assert kept.find(made().key) is not None


def test_what_another_user_wrote_is_not_run(kept, monkeypatch):
    kept.store(made(), "scale.cu")
    monkeypatch.setattr(code_cache.os, "getuid", lambda: 4711)
    real = Path.stat

    class Theirs:
        def __init__(self, status: os.stat_result) -> None:
            self.status = status
            self.st_uid = 4712

        def __getattr__(self, name: str) -> object:
            return getattr(self.status, name)

    monkeypatch.setattr(Path, "stat", lambda path, **how: Theirs(real(path, **how)))
    assert kept.find(made().key) is None
