"""Nothing that belongs to one package stops another: damaged metadata of any distribution costs itself alone."""

from __future__ import annotations

import os
import socket

import fault_fakes as fakes
import pytest

LATIN = "Metadata-Version: 2.1\nName: Stra\xdfe\nVersion: 1.0\n\nSumm\xe4ry\n".encode("latin-1")


def _with(kind):
    """Damages one distribution, with a sound one beside it, and calls an op."""
    fakes.write("sound", kernel="k", priority=1, source="def run(*a, **k): ...")
    DAMAGES[kind]()
    result = fakes.call()
    from portakernel.runtime import dispatcher

    manager = dispatcher().registry.manager
    return {
        "result": result,
        "sound": "sound.k" in dispatcher().registry.kernels,
        "faults": fakes.faults(),
        "unreadable": [[os.path.basename(one.path), one.reason] for one in manager.unreadable],
    }


def _in(file, make):
    path = fakes.info("ill-1.0.dist-info") / file
    path.unlink(missing_ok=True)
    make(path)


def _named(value):
    fakes.info("ill_dist-1.0.dist-info", f"ill = {value}".rstrip())


def _bind(path):
    os.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)


def _a_file_in_the_folders_place():
    fakes.info("other-1.0.dist-info")
    with open("site/ill-1.0.dist-info", "w", encoding="utf-8") as file:
        file.write("no folder")


def _a_loop():
    fakes.info("other-1.0.dist-info")
    os.symlink("ill-1.0.dist-info", "site/ill-1.0.dist-info")


def _a_finder_that_raises():
    import sys

    class Finder:
        def find_distributions(self, context):
            raise RuntimeError("no answer")

        def find_spec(self, name, path, target=None):
            if name.startswith("fake_"):
                raise RuntimeError("no answer")

    sys.meta_path.insert(0, Finder())


DAMAGES = {
    "metadata in latin-1": lambda: fakes.info("ill-1.0.dist-info", metadata=LATIN),
    "metadata of zeros": lambda: fakes.info("ill-1.0.dist-info", metadata=bytes(1 << 16)),
    "no name": lambda: fakes.info("ill-1.0.dist-info", metadata="Version: 1.0\n"),
    "no version": lambda: fakes.info("ill-1.0.dist-info", metadata="Name: ill\n"),
    "empty metadata": lambda: fakes.info("ill-1.0.dist-info", metadata=""),
    "no metadata": lambda: _in("METADATA", lambda path: None),
    "metadata is a folder": lambda: _in("METADATA", os.mkdir),
    "metadata is a pipe": lambda: _in("METADATA", os.mkfifo),
    "metadata is /dev/zero": lambda: _in("METADATA", lambda path: os.symlink("/dev/zero", path)),
    "record in latin-1": lambda: fakes.info("ill-1.0.dist-info", RECORD=b"\xff\xfe,,\n"),
    "record is a pipe": lambda: _in("RECORD", os.mkfifo),
    "a file in the folder's place": _a_file_in_the_folders_place,
    "an odd folder": lambda: fakes.info(".dist-info"),
    "a finder that raises": _a_finder_that_raises,
    "entry points of another group in latin-1": lambda: fakes.info(
        "ill-1.0.dist-info", **{"entry_points.txt": b"[console_scripts]\nstra\xdfe = a:b\n"}
    ),
    "entry points that are no sections": lambda: fakes.info(
        "ill-1.0.dist-info", **{"entry_points.txt": b"portakernel = [[[\n=\n\x00\n"}
    ),
}
UNREADABLE = {
    "entry points are a pipe": (os.mkfifo, "is a named pipe; a regular file is accepted"),
    "entry points are a folder": (os.mkdir, "is a folder; a regular file is accepted"),
    "entry points are a socket": (_bind, "is a socket; a regular file is accepted"),
    "entry points have a terabyte": (
        lambda path: (path.touch(), os.truncate(path, 1 << 40)),
        "has 1099511627776 bytes; at most 67108864 are accepted",
    ),
}
for _kind, (_make, _) in UNREADABLE.items():
    DAMAGES[_kind] = lambda make=_make: _in("entry_points.txt", make)
UNREADABLE["a folder that is a loop"] = None, "Too many levels of symbolic links"
DAMAGES["a folder that is a loop"] = _a_loop
NO_MODULES = {
    "two words": "a b::c",
    "empty": "",
    "a path": "../../etc/passwd",
    "a number": "1",
    "dots": "...",
    "turned around": "\u202etxt",
}
for _kind, _value in NO_MODULES.items():
    DAMAGES[f"entry point: {_kind}"] = lambda value=_value: _named(value)
SILENT = [kind for kind in DAMAGES if kind not in UNREADABLE and not kind.startswith("entry point: ")]
SERVED = {"result": [3, 3, 3], "sound": True, "faults": [], "unreadable": []}


@pytest.mark.parametrize("kind", SILENT)
def test_damaged_metadata_of_a_stranger_stops_nobody(fault, kind):
    outcome = fault(_with, kind)
    assert (outcome.status, outcome.returned) == (0, SERVED), outcome.stderr


@pytest.mark.parametrize("kind", UNREADABLE)
def test_entry_points_that_cannot_be_read_are_kept_with_their_reason(fault, kind):
    outcome = fault(_with, kind)
    said = SERVED | {"unreadable": [["ill-1.0.dist-info", UNREADABLE[kind][1]]]}
    assert (outcome.status, outcome.returned) == (0, said), outcome.stderr


@pytest.mark.parametrize("kind", NO_MODULES)
def test_an_entry_point_that_names_no_module_breaks_its_package_alone(fault, kind):
    outcome = fault(_with, f"entry point: {kind}")
    (broken,) = outcome.returned.pop("faults")
    assert broken[:2] == ["ill", "discovery"]
    assert broken[2].startswith("the entry point 'ill' of ill_dist names no module, but '")
    assert outcome.returned == {key: value for key, value in SERVED.items() if key != "faults"}
