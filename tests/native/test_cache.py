"""The cache on disk: altered entries, full disks, other users, and its size."""

from __future__ import annotations

import errno
import json
import os
import pwd
import re
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from portakernel.authoring.native import CodeObject, KernelFacts, build
from portakernel.host.cache_folder import CacheWarning, default_folder
from portakernel.host.private_folder import in_use
from portakernel.native import code_cache, entry
from portakernel.native.code_cache import Cache, cache
from portakernel.words.target import Target

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
        if roots is None or folder.parent in roots:
            (folder / "code").write_bytes(b"half")
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


def test_what_writers_left_behind_goes_once_they_have_ended(kept, cache_folder):
    """Those without a lock after a day: where the file system has none, or of a version that knew none."""
    ages = {".writing-locked": 120, ".writing-new": 120, ".writing-day": 2 * 86400, ".discarded-half": 0}
    for name in ages:
        (cache_folder / name).mkdir(parents=True)
        (cache_folder / name / "code").write_bytes(b"half")
    cache_folder.chmod(0o700)
    (cache_folder / ".writing-locked" / ".lock").touch()
    for name, age in ages.items():
        then = os.stat(cache_folder).st_mtime - age
        os.utime(cache_folder / name, (then, then))
    kept.store(made(), "scale.cu")
    assert [path.name for path in cache_folder.glob(".*")] == [".writing-new"]


def test_what_a_writer_is_writing_stays(kept, cache_folder):
    folder = cache_folder / ".writing-live"
    folder.mkdir(parents=True)
    cache_folder.chmod(0o700)
    with in_use(folder):
        os.utime(folder, (0, 0))
        kept.tidy()
        assert folder.exists()
    os.utime(folder, (0, 0))
    kept.tidy()
    assert not folder.exists()


def test_the_environment_says_where_it_is_and_how_large(monkeypatch, tmp_path):
    monkeypatch.setenv("PORTAKERNEL_CACHE_MIB", "7")
    assert (cache().folder, cache().limit_bytes) == (tmp_path / "cache", 7 << 20)
    monkeypatch.delenv("PORTAKERNEL_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache().folder == tmp_path / "xdg" / "portakernel"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache().folder == tmp_path / "home" / ".cache" / "portakernel"


def test_an_empty_home_is_none_and_not_the_root(monkeypatch, tmp_path):
    account = mock.Mock(pw_dir=str(tmp_path / "account"))
    monkeypatch.setattr(pwd, "getpwuid", lambda number: account)
    monkeypatch.setenv("HOME", "")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("PORTAKERNEL_CACHE_DIR", "~/kernels")
    assert cache().folder == tmp_path / "account" / "kernels"
    monkeypatch.delenv("PORTAKERNEL_CACHE_DIR")
    assert cache().folder == tmp_path / "account" / ".cache" / "portakernel"
    monkeypatch.setattr(pwd, "getpwuid", mock.Mock(side_effect=KeyError("uid not found")))
    assert default_folder() == "~/.cache/portakernel"


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


# --- what somebody else can have written ---------------------------------------------------------------------------

STRANGER = 54321
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")


def put(place: Path, what: str) -> None:
    """Something else in the place of an entry."""
    if what == "a file":
        place.write_bytes(b"code")
    elif what == "a dangling link":
        place.symlink_to("nowhere")
    elif what == "a link to an entry":
        place.with_name("elsewhere").mkdir()
        place.symlink_to("elsewhere")
    elif what == "a pipe":
        os.mkfifo(place)
    elif what == "a folder with a file":
        place.mkdir()
        (place / "notes.txt").touch()
    elif what == "a folder":
        place.mkdir()


PLACED = {
    "a file": "it is no folder",
    "a dangling link": "it is a link",
    "a link to an entry": "it is a link",
    "a pipe": "it is no folder",
    "a folder with a file": "entry.json is missing",
    "a folder": "entry.json is missing",
}


@pytest.mark.parametrize("what", PLACED)
def test_what_lies_in_an_entrys_place_is_discarded_when_it_is_looked_for(kept, cache_folder, what):
    cache_folder.mkdir(mode=0o700)
    put(cache_folder / made().key, what)
    with pytest.warns(CacheWarning) as warned:
        assert kept.find(made().key) is None
    place = cache_folder / made().key
    assert [str(one.message) for one in warned] == [f"{place} is discarded, to be built anew: {PLACED[what]}"]
    assert not os.path.lexists(place)
    assert kept.store(made(), "scale.cu").path == place / "code"


@pytest.mark.parametrize("what", PLACED)
def test_what_is_put_into_an_entrys_place_meanwhile_is_not_taken_for_it(kept, cache_folder, what, recwarn):
    cache_folder.mkdir(mode=0o700)
    put(cache_folder / made().key, what)
    stored = kept.store(made(), "scale.cu")
    assert stored.path.read_bytes() == made().code
    assert kept.find(made().key).code == made().code
    assert list(cache_folder.glob(".*")) == []


def test_an_equal_entry_of_another_process_stays(kept, cache_folder):
    Cache(cache_folder, 1 << 20).store(made(), "theirs.cu")
    stored = kept.store(made(), "ours.cu")
    assert stored.path.read_bytes() == made().code
    assert [found.source for found in kept.entries()] == ["theirs.cu"]


@pytest.mark.parametrize("name", ["code", "assembly.z", "entry.json"])
@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda path: path.chmod(0o666), "can be written by everybody"),
        (lambda path: (path.unlink(), path.mkdir()), "is a folder; a regular file is accepted"),
        (lambda path: (path.unlink(), os.mkfifo(path)), "is a named pipe; a regular file is accepted"),
        (
            lambda path: (path.rename(path.with_name("it")), path.symlink_to("it")),
            "is a symbolic link; a regular file is accepted",
        ),
        (lambda path: (path.unlink(), path.symlink_to("/dev/zero")), "is a symbolic link; a regular file is accepted"),
    ],
    ids=["writable", "folder", "pipe", "link", "device"],
)
def test_a_file_of_an_entry_that_is_not_its_writers_alone(kept, name, spoil, says):
    folder = kept.store(made(), "scale.cu").path.parent
    spoil(folder / name)
    assert [found.broken for found in kept.entries()] == [f"{name} {says}"]
    with pytest.warns(CacheWarning, match=f"^{folder} is discarded, to be built anew: {name} {says}$"):
        assert kept.find(made().key) is None


def test_an_entry_that_others_can_write_is_discarded(kept):
    folder = kept.store(made(), "scale.cu").path.parent
    folder.chmod(0o777)
    with pytest.warns(CacheWarning, match=f"^{folder} is discarded, to be built anew: it can be written by everybody$"):
        assert kept.find(made().key) is None


@as_root
@pytest.mark.parametrize("name", ["", "code", "entry.json"])
def test_what_another_user_wrote_is_not_run(kept, name):
    folder = kept.store(made(), "scale.cu").path.parent
    os.chown(folder / name, STRANGER, -1)
    what = name or "it"
    says = f"{folder} is discarded, to be built anew: {what} belongs to user {STRANGER}"
    with pytest.warns(CacheWarning) as warned:
        assert kept.find(made().key) is None
    assert [str(one.message) for one in warned] == [says]


def test_a_head_that_names_files_elsewhere_leads_nowhere(kept, tmp_path):
    folder = kept.store(made(), "scale.cu").path.parent
    head = json.loads((folder / "entry.json").read_text())
    del head["digest"]
    head["files"] = {**head["files"], "../../secret": "0"}
    (folder / "entry.json").write_text(json.dumps({**head, "digest": entry._digest_of(head)}))
    with pytest.warns(CacheWarning, match=r"entry\.json is of another entry or version$"):
        assert kept.find(made().key) is None


DISTRUST_REMEDY = "set PORTAKERNEL_CACHE_DIR to a folder that nobody else can write, or take this one away"


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o757])
def test_a_private_folder_serves_in_the_place_of_one_that_others_can_write(kept, cache_folder, temporary, mode):
    kept.store(made(0), "scale.cu")
    cache_folder.chmod(mode)
    with pytest.warns(CacheWarning) as warned:
        assert kept.find(made(0).key) is None  # though it is whole: others can have put it there
    stored = kept.store(made(1), "scale.cu")
    private = stored.path.parents[1]
    assert private.parent == temporary
    text = f"the cache of compiled kernels {cache_folder} can be written by everybody: {private} serves in its place"
    assert [str(one.message) for one in warned] == [f"{text}, and goes when this process ends; {DISTRUST_REMEDY}"]
    assert [found.folder.parent for found in kept.entries()] == [private]
    assert kept.find(made(1).key).code == made(1).code
    assert [path.name for path in cache_folder.iterdir()] == [made(0).key]
    assert kept.trouble() == f"the cache of compiled kernels {cache_folder} can be written by everybody"
    assert kept.remedy == DISTRUST_REMEDY


def test_a_folder_below_one_that_others_can_write_is_distrusted_too(tmp_path, temporary):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    kept = Cache(tmp_path / "open" / "cache", 1 << 20)
    says = f"{kept.folder} is below {tmp_path / 'open'}, which can be written by everybody: {temporary}/"
    with pytest.warns(CacheWarning, match=re.escape(says)):
        assert kept.store(made(), "scale.cu").path.is_relative_to(temporary)
    assert not kept.folder.exists()


def test_where_the_temporary_folder_is_no_better_nothing_is_kept(kept, cache_folder, temporary):
    cache_folder.mkdir()
    cache_folder.chmod(0o777)
    temporary.chmod(0o777)
    with pytest.warns(CacheWarning) as warned:
        assert kept.store(made(), "scale.cu").path is None
    text = (
        f"the cache of compiled kernels {cache_folder} can be written by everybody, and the temporary folder"
        f" {temporary} cannot be written (what is in it is below {temporary}, which can be written by everybody):"
        f" kernels are compiled anew in each process; {DISTRUST_REMEDY}"
    )
    assert [str(one.message) for one in warned] == [text]
    assert list(temporary.iterdir()) == []


def test_a_private_folder_that_was_taken_away_is_made_anew(kept, cache_folder, temporary, recwarn):
    cache_folder.mkdir()
    cache_folder.chmod(0o777)
    first = kept.store(made(0), "scale.cu").path.parents[1]
    first.rename(temporary / "away")
    first.mkdir()
    first.chmod(0o777)  # as somebody else's would be
    second = kept.store(made(0), "scale.cu").path.parents[1]
    assert second != first
    assert kept.find(made(0).key).path.parents[1] == second


def test_a_folder_that_somebody_else_makes_first_is_not_written(kept, cache_folder, temporary, monkeypatch):
    real = code_cache.make_folder

    def make(folder: Path) -> None:
        real(folder)
        if folder == cache_folder:
            folder.chmod(0o777)

    monkeypatch.setattr(code_cache, "make_folder", make)
    with pytest.warns(CacheWarning, match=r"cannot be written \(it can be written by everybody\): "):
        assert kept.store(made(), "scale.cu").path.is_relative_to(temporary)
    assert list(cache_folder.iterdir()) == []


def test_the_folder_may_be_in_the_home_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PORTAKERNEL_CACHE_DIR", "~/kernels")
    assert cache().folder == tmp_path / "kernels"


@pytest.mark.parametrize("named", [False, True])
def test_without_a_home_directory_a_private_folder_serves(monkeypatch, temporary, named):
    if named:
        monkeypatch.setenv("PORTAKERNEL_CACHE_DIR", "~/.cache/portakernel")
    else:
        monkeypatch.delenv("PORTAKERNEL_CACHE_DIR")
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # what it does for a user without an account
    code_cache._cache.cache_clear()
    says = "~/.cache/portakernel is in a home directory, which this user does not have: "
    with pytest.warns(CacheWarning, match=f"^the cache of compiled kernels {says}{temporary}/"):
        assert cache().store(made(), "scale.cu").path.is_relative_to(temporary)
    assert not Path("~").exists()


@pytest.mark.parametrize("mask", [0, 0o002, 0o022, 0o077])
def test_whatever_the_mask_nobody_else_can_write_what_is_kept(kept, cache_folder, mask):
    before = os.umask(mask)
    try:
        folder = kept.store(made(), "scale.cu").path.parent
    finally:
        os.umask(before)
    assert cache_folder.stat().st_mode & 0o777 == 0o700
    assert folder.stat().st_mode & 0o777 == 0o755 & ~mask
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o644 & ~mask}
    assert kept.find(made().key) is not None
