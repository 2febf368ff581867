"""Where Triton's cache directory cannot be used, a private one is, and it is said; what the other holds is read."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("triton")

from triton import knobs
from triton.runtime.cache import get_cache_manager

from portakernel.claims.capability import ReasonCode
from portakernel.triton_launch.cache_folder import CacheFolder, CacheWarning


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Iterator[Path]:
    """The directory that Triton is told to use; what is set in its place is unset afterwards."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    with knobs.cache.scope():
        yield tmp_path / "cache"


def moved(folder: Path, trouble: str, wanted: str = "on a local disk that can be written") -> tuple[CacheFolder, Path]:
    """What became of a directory with this trouble: the private one, said of in a warning and a note."""
    found = CacheFolder()
    with pytest.warns(CacheWarning) as warned:
        assert found.settle() is None
    private = Path(knobs.cache.dir)
    note = (
        f"Triton's cache directory {folder} {trouble}: {private} serves in its place, and goes when this process"
        f" ends; set TRITON_CACHE_DIR to a directory {wanted}"
    )
    assert found.notes == [note]
    assert [str(one.message) for one in warned] == [note]
    return found, private


def failing_write(monkeypatch, code: int, below: Path) -> None:
    """Writing a file below that directory fails."""
    real = Path.write_bytes

    def write_bytes(path: Path, data: bytes) -> int:
        if path.is_relative_to(below):
            raise OSError(code, os.strerror(code))
        return real(path, data)

    monkeypatch.setattr(Path, "write_bytes", write_bytes)


def test_a_directory_that_can_be_used_is_used(folder):
    found = CacheFolder()
    assert found.settle() is None
    assert (knobs.cache.dir, found.notes) == (str(folder), [])
    assert list(folder.iterdir()) == []


def test_a_file_in_its_place(folder):
    folder.touch()
    moved(folder, "is no directory (File exists)")


@pytest.mark.parametrize(
    ("code", "trouble"),
    [
        (errno.ENOSPC, "is full (No space left on device)"),
        (errno.EDQUOT, "is beyond its quota (Disk quota exceeded)"),
        (errno.EROFS, "is read-only (Read-only file system)"),
        (errno.EACCES, "cannot be written (Permission denied)"),
        (errno.EIO, "cannot be used (Input/output error)"),
    ],
)
def test_a_directory_that_takes_no_file(folder, monkeypatch, code, trouble):
    failing_write(monkeypatch, code, folder)
    moved(folder, trouble)
    assert list(folder.iterdir()) == []


def test_a_directory_from_which_no_library_can_be_loaded(folder, monkeypatch):
    real = os.statvfs
    noexec = SimpleNamespace(f_flag=os.ST_NOEXEC)
    monkeypatch.setattr(os, "statvfs", lambda path: noexec if Path(path) == folder else real(path))
    moved(folder, "is on a file system that is mounted noexec, and libraries are loaded from there")


def test_the_private_directory_is_this_users_alone_and_other_processes(folder):
    folder.touch()
    _, private = moved(folder, "is no directory (File exists)")
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert private.stat().st_uid == os.getuid()
    assert private.parent == Path(tempfile.gettempdir())
    assert os.environ["TRITON_CACHE_DIR"] == str(private)
    assert CacheFolder().settle() is None
    assert knobs.cache.dir == str(private)


def test_where_there_is_no_other_directory_it_is_refused(folder, monkeypatch):
    failing_write(monkeypatch, errno.ENOSPC, folder.parent)
    found = CacheFolder()
    rejection = found.settle()
    assert rejection is not None
    assert rejection.code is ReasonCode.PROBE_FAILED
    full = "is full (No space left on device)"
    private = f"{tempfile.gettempdir()}/portakernel-triton-"
    assert rejection.text.startswith(f"Triton's cache directory {folder} {full}, and {private}")
    assert rejection.text.endswith(
        f", which would take its place, {full}; make room, or set TRITON_CACHE_DIR to a directory on a local disk that"
        " can be written"
    )
    assert (knobs.cache.dir, found.notes) == (str(folder), [])


def test_what_the_other_directory_holds_whole_is_still_found(folder, monkeypatch):
    kernel, library = get_cache_manager("ab" * 32), get_cache_manager("cd" * 32)
    files = {"k.cubin": kernel.put(b"code", "k.cubin")}
    kernel.put_group("k.json", files)
    library.put(b"elf", "launcher.so")
    begun = get_cache_manager("ef" * 32)
    begun.put(b"half", "k.ttir")
    failing_write(monkeypatch, errno.EROFS, folder)
    _, private = moved(folder, "is read-only (Read-only file system)")
    assert get_cache_manager("ab" * 32).get_group("k.json") == files
    linked = private / Path(library.cache_dir).name / "launcher.so"
    assert get_cache_manager("cd" * 32).get_file("launcher.so") == str(linked)
    assert linked.read_bytes() == b"elf"
    # what was only begun there is begun anew here
    anew = get_cache_manager("ef" * 32)
    assert anew.get_file("k.ttir") is None
    assert Path(anew.put(b"whole", "k.ttir")).read_bytes() == b"whole"
    assert Path(begun.cache_dir, "k.ttir").read_bytes() == b"half"


STRANGER = 54321
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
OWN = "that nobody else can write"


def kept_entry(digest: str) -> Path:
    """A launcher, as Triton keeps one."""
    return Path(get_cache_manager(digest * 32).put(b"elf", "launcher.so"))


def adopted(private: Path) -> list[str]:
    """What is still found in a private directory."""
    return [path.name for path in private.iterdir() if path.is_symlink()]


@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_of_a_directory_that_others_can_write_nothing_is_run(folder, mode):
    kept_entry("ab")
    folder.chmod(mode)
    _, private = moved(folder, "can be written by everybody", OWN)
    assert adopted(private) == []


@pytest.mark.parametrize("filled", [False, True])
def test_a_directory_that_others_can_exchange_is_neither_made_nor_read(folder, monkeypatch, filled):
    folder.mkdir()
    folder.chmod(0o777)
    inner = folder / "cache"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(inner))
    if filled:
        kept_entry("ab")
    _, private = moved(inner, f"is below {folder}, which can be written by everybody", OWN)
    assert adopted(private) == []
    assert inner.exists() == filled


@as_root
def test_of_another_users_directory_nothing_is_run(folder):
    kept_entry("ab")
    os.chown(folder, STRANGER, -1)
    _, private = moved(folder, f"belongs to user {STRANGER}", OWN)
    assert adopted(private) == []


def test_a_directory_that_is_made_is_this_users_alone(folder):
    before = os.umask(0)
    try:
        assert CacheFolder().settle() is None
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_an_entry_that_others_can_write_is_left_behind_and_the_rest_is_found(folder):
    good, bad = kept_entry("ab"), kept_entry("cd")
    folder.chmod(0o755)
    bad.parent.chmod(0o777)
    _, private = moved(folder, f"holds {bad.parent.name}, which can be written by everybody", OWN)
    assert adopted(private) == [good.parent.name]


def test_where_nobody_else_may_enter_modes_inside_do_not_matter(folder):
    kept_entry("ab").parent.chmod(0o777)
    folder.chmod(0o700)
    assert CacheFolder().settle() is None
    assert knobs.cache.dir == str(folder)


@pytest.mark.parametrize("spoiled", ["entry", "file"])
def test_what_others_can_have_written_is_not_adopted_from_a_full_directory(folder, monkeypatch, spoiled):
    good, bad = kept_entry("ab"), kept_entry("cd")
    folder.chmod(0o700)
    (bad.parent if spoiled == "entry" else bad).chmod(0o777)
    failing_write(monkeypatch, errno.ENOSPC, folder)
    _, private = moved(folder, "is full (No space left on device)")
    assert adopted(private) == [good.parent.name]


@as_root
def test_what_another_user_left_there_is_not_adopted(folder, monkeypatch):
    os.chown(kept_entry("ab").parent, STRANGER, -1)
    folder.chmod(0o700)
    failing_write(monkeypatch, errno.EACCES, folder)
    _, private = moved(folder, "cannot be written (Permission denied)")
    assert adopted(private) == []


def test_a_cache_that_is_no_directory_is_left_alone(folder, monkeypatch):
    folder.touch()
    monkeypatch.setattr(knobs.cache, "manager_class", object)
    assert CacheFolder().settle() is None
    assert not CacheFolder().recover(OSError(errno.ENOSPC, "full"))
    assert knobs.cache.dir == str(folder)


def raised(code: int, where: object = None) -> OSError:
    return OSError(code, os.strerror(code), None if where is None else str(where))


@pytest.mark.parametrize("code", [errno.EBUSY, errno.ENOENT, errno.ESTALE, errno.ENOTEMPTY])
def test_what_another_process_did_to_the_directory_passes(folder, code):
    found = CacheFolder()
    assert found.recover(raised(code, folder / "ab" / "tmp.pid_1"))
    assert not found.recover(raised(code, "/usr/bin/gcc"))
    assert not found.recover(raised(code))
    assert (knobs.cache.dir, found.notes) == (str(folder), [])


def test_a_directory_that_becomes_full_is_left(folder):
    found = CacheFolder()
    with pytest.warns(CacheWarning, match=r"is full \(No space left on device\): "):
        assert found.recover(raised(errno.ENOSPC))
    assert knobs.cache.dir != str(folder)
    assert len(found.notes) == 1


def test_other_errors_are_not_the_directorys(folder):
    found = CacheFolder()
    assert not found.recover(raised(errno.EACCES, "/usr/bin/ptxas"))
    assert not found.recover(raised(errno.ENOMEM))
    assert knobs.cache.dir == str(folder)


def test_the_private_directory_goes_with_its_process_and_not_with_its_children(tmp_path):
    taken, temporary = tmp_path / "cache", tmp_path / "temporary"
    taken.touch()
    temporary.mkdir()
    program = (
        "import os, sys, warnings; warnings.simplefilter('ignore')\n"
        "from triton import knobs\n"
        "from portakernel.triton_launch.cache_folder import FOLDER\n"
        "assert FOLDER.settle() is None\n"
        "child = os.fork()\n"
        "if child == 0: sys.exit()\n"
        "os.waitpid(child, 0)\n"
        "print(os.path.isdir(knobs.cache.dir))\n"
    )
    environment = {**os.environ, "TRITON_CACHE_DIR": str(taken), "TMPDIR": str(temporary)}
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout == "True\n"
    assert list(temporary.iterdir()) == []
