"""A file is read where it is a regular one of bounded size; what is something else is refused, without waiting."""

from __future__ import annotations

import errno
import os
import re
import socket

import pytest

from portakernel.host.regular_file import read_regular


@pytest.fixture
def short(tmp_path, monkeypatch):
    """The test's folder under a short name: a socket's may have a hundred characters."""
    monkeypatch.chdir(tmp_path)


def test_the_bytes_of_a_regular_file_are_read_up_to_the_limit_and_through_links(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"12345")
    (tmp_path / "link").symlink_to(file)
    assert read_regular(file, limit=5) == b"12345"
    assert read_regular(str(tmp_path / "link"), limit=5) == b"12345"
    assert read_regular(file, limit=5, follow=False) == b"12345"


def _bind(name):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)


def _enlarge(name):
    with open(name, "wb") as file:
        file.truncate(6)


@pytest.mark.parametrize(
    ("name", "make", "code", "text"),
    [
        ("pipe", os.mkfifo, errno.EINVAL, "is a named pipe; a regular file is accepted"),
        ("folder", os.mkdir, errno.EISDIR, "is a folder; a regular file is accepted"),
        ("zero", lambda name: os.symlink("/dev/zero", name), errno.EINVAL, "is a character device; a regular file is"),
        ("socket", _bind, errno.EINVAL, "is a socket; a regular file"),
        ("large", _enlarge, errno.EFBIG, "has 6 bytes; at"),
        ("loop", lambda name: os.symlink(name, name), errno.ELOOP, "Too many levels of symbolic links"),
        ("absent", lambda name: None, errno.ENOENT, "No such file or directory"),
    ],
)
def test_what_is_no_regular_file_or_too_large_is_refused(short, name, make, code, text):
    make(name)
    with pytest.raises(OSError, match=re.escape(text)) as raised:
        read_regular(name, limit=5)
    assert (raised.value.errno, raised.value.filename) == (code, name)


def test_a_link_is_refused_where_none_is_followed(tmp_path):
    (tmp_path / "file").write_bytes(b"1")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with pytest.raises(OSError, match="is a symbolic link; a regular file is accepted") as raised:
        read_regular(tmp_path / "link", limit=5, follow=False)
    assert raised.value.errno == errno.ELOOP


def test_what_came_into_the_files_place_after_the_first_look_is_refused_without_waiting(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_bytes(b"1")
    status = os.stat(file)
    file.unlink()
    os.mkfifo(file)
    monkeypatch.setattr(os, "stat", lambda *_, **__: status)
    with pytest.raises(OSError, match="is a named pipe; a regular file is accepted"):
        read_regular(file, limit=5)


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="there is no /proc")
def test_a_file_that_does_not_say_how_large_it_is_is_bounded_too():
    assert b"Name:" in read_regular("/proc/self/status", limit=1 << 20)
    with pytest.raises(OSError, match="has more than 5 bytes, which is what is accepted"):
        read_regular("/proc/self/status", limit=5)
