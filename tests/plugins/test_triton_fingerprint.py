"""Triton's fingerprint of itself is computed once for an installation, and is what Triton computes."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

import triton
import triton.runtime.cache

from portakernel.triton_launch import fingerprint

CACHE = sys.modules["triton.runtime.cache"]
TRUE = triton.__version__ + "-".join(hashlib.sha256(bytes([i])).hexdigest() for i in range(3))


FILES = ("_C/libtriton.so", "runtime/cache.py", "compiler/compiler.py", "backends/amd/driver.py", "language/core.py")


class Computed:
    """Triton's function, counting."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> str:
        self.times += 1
        return TRUE

    def cache_info(self):
        return type("Info", (), {"currsize": self.times})


@pytest.fixture
def computed(tmp_path, monkeypatch) -> Computed:
    """As in a new process, with an empty cache."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    found = Computed()
    monkeypatch.setattr(CACHE, "triton_key", found)
    return found


def next_process(monkeypatch) -> Computed:
    found = Computed()
    monkeypatch.setattr(CACHE, "triton_key", found)
    fingerprint.remember()
    assert CACHE.triton_key() == TRUE
    return found


@pytest.fixture
def installation(tmp_path, monkeypatch) -> Path:
    """A wheel's files, of which Triton's fingerprint is made."""
    package = tmp_path / "site" / "triton"
    for name in FILES:
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name, encoding="utf-8")
    record = package.parent / "pytorch_triton-3.9.0.dist-info" / "RECORD"
    record.parent.mkdir()
    record.write_text("triton/__init__.py,sha256=a,1\ntriton/_C/libtriton.so,sha256=b,2\n", encoding="utf-8")
    monkeypatch.setattr(triton, "__file__", str(package / "__init__.py"))
    return package


def test_this_installations_is_what_triton_computes():
    """Where nothing was kept, and where it was."""
    if fingerprint._stamp(Path(triton.__file__).parent) is None:
        pytest.skip("this Triton is no wheel's")
    kept = CACHE.triton_key
    compute = getattr(kept, "__wrapped__", kept)
    fingerprint.remember()
    assert CACHE.triton_key() == compute()


def test_it_is_computed_once_for_all_processes(computed, installation, monkeypatch):
    fingerprint.remember()
    assert computed.times == 0
    assert [CACHE.triton_key(), CACHE.triton_key()] == [TRUE, TRUE]
    assert computed.times == 1
    assert next_process(monkeypatch).times == 0


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("change", ["size", "time"])
def test_another_file_of_triton_is_another_installation(computed, installation, monkeypatch, name, change):
    assert next_process(monkeypatch).times == 1
    assert next_process(monkeypatch).times == 0
    path = installation / name
    before = path.stat()
    if change == "size":
        path.write_text("longer than it was", encoding="utf-8")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    else:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert next_process(monkeypatch).times == 1


@pytest.mark.parametrize("folder", ["compiler", "backends/amd", "language"])
def test_a_file_more_is_another_installation(computed, installation, monkeypatch, folder):
    assert next_process(monkeypatch).times == 1
    (installation / folder / "new.py").touch()
    assert next_process(monkeypatch).times == 1


def test_another_wheel_of_the_same_sizes_and_times_is_another_installation(computed, installation, monkeypatch):
    assert next_process(monkeypatch).times == 1
    record = next(installation.parent.glob("*.dist-info/RECORD"))
    record.write_text(record.read_text(encoding="utf-8").replace("=b", "=c"), encoding="utf-8")
    assert next_process(monkeypatch).times == 1


@pytest.mark.parametrize("record", ["", "triton/_C/libtriton.so,,\n"])
def test_what_no_wheel_vouches_for_is_computed_each_time(computed, installation, record):
    next(installation.parent.glob("*.dist-info/RECORD")).write_text(record, encoding="utf-8")
    fingerprint.remember()
    assert CACHE.triton_key is computed


@pytest.fixture
def kept(computed, installation, monkeypatch) -> Path:
    """The file with the fingerprint."""
    next_process(monkeypatch)
    (path,) = Path(triton.knobs.cache.dir, "portakernel").iterdir()
    return path


FORGED = TRUE[:-1] + ("0" if TRUE[-1] != "0" else "1")


@pytest.mark.parametrize(
    "damage",
    [
        lambda kept: "",
        lambda kept: kept[:-2],
        lambda kept: TRUE,
        lambda kept: kept.replace(TRUE, FORGED),
        lambda kept: "\N{SNOWMAN}" * 200,
        lambda kept: kept * 5000,
    ],
    ids=["emptied", "cut", "no digest", "altered", "no ASCII", "too long"],
)
def test_a_damaged_file_is_written_anew(kept, monkeypatch, damage):
    whole = kept.read_text(encoding="utf-8")
    kept.write_text(damage(whole), encoding="utf-8")
    assert next_process(monkeypatch).times == 1
    assert kept.read_text(encoding="utf-8") == whole
    assert next_process(monkeypatch).times == 0


def test_another_installations_fingerprint_is_not_this_ones(kept, monkeypatch):
    kept.rename(kept.with_name("fingerprint-of-another"))
    kept.write_bytes(kept.with_name("fingerprint-of-another").read_bytes())
    other = kept.read_text(encoding="utf-8").replace("3", "4")
    kept.write_text(other, encoding="utf-8")
    assert next_process(monkeypatch).times == 1


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.chmod(0o666),
        lambda path: (path.rename(path.with_name("it")), path.symlink_to("it")),
        lambda path: (path.unlink(), path.mkdir(), (path / "file").touch()),
        lambda path: (path.unlink(), os.mkfifo(path)),
        lambda path: (path.unlink(), path.symlink_to("nowhere")),
    ],
    ids=["writable by others", "link", "folder", "pipe", "dangling link"],
)
def test_a_file_that_others_can_have_written_is_written_anew(kept, monkeypatch, spoil):
    spoil(kept)
    assert next_process(monkeypatch).times == 1
    assert next_process(monkeypatch).times == 0
    assert kept.is_file()
    assert not kept.is_symlink()


def test_a_cache_that_cannot_be_written_keeps_nothing_and_works(computed, installation, monkeypatch):
    Path(triton.knobs.cache.dir).touch()
    for _ in range(2):
        assert next_process(monkeypatch).times == 1


@pytest.mark.parametrize("other", [None, lambda: TRUE])
def test_what_another_version_of_triton_has_there_stays(installation, monkeypatch, other):
    monkeypatch.setattr(CACHE, "triton_key", other)
    fingerprint.remember()
    assert CACHE.triton_key is other


def test_a_fingerprint_that_was_computed_already_stays(computed, installation):
    computed()
    fingerprint.remember()
    assert CACHE.triton_key is computed
