"""Caches on disk under faults: other users, other things in an entry's place, file systems that refuse, and killings.

Each is the real thing: another user is another user, a full disk is a full disk.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from cxx import needs_cxx

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="mounts and users are set up as Linux does"
)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user or to mount a file system")
NAME, OTHER = 54321, 54322
KEY = f"{0:040x}-{0:012x}"
CLONE_NEWUSER, CLONE_NEWNS, MS_REC, MS_PRIVATE, MS_NOEXEC, MS_RDONLY = 0x10000000, 0x20000, 0x4000, 1 << 18, 8, 1


# --- what the faults are made of -----------------------------------------------------------------------------------


def _made(code=b"code", number=0, form="code object"):
    from portakernel.authoring.native import CodeObject, KernelFacts
    from portakernel.words.target import Target

    facts = (KernelFacts("scale", "scale"),)
    key = f"{number:040x}-{0:012x}"
    return CodeObject(key, form, Target("nvidia", "sm_90"), "nvcc 13.0", facts, None, code, seconds=1.0)


def _served(code=b"code"):
    """A look-up and then a build, as a first call makes them; what came of them, and what was said."""
    from portakernel.authoring.native import cache

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        before = cache().find(KEY)
        stored = cache().store(_made(code), "scale.cu")
        after = cache().find(KEY)
    folder = cache().folder
    return {
        "before": None if before is None else before.code.decode(),
        "stored": stored.code.decode(),
        "after": None if after is None else after.code.decode(),
        "in it": stored.path is not None and stored.path.is_relative_to(folder),
        "said": [str(one.message) for one in caught],
    }


def _imported():
    """What is served below, once for its imports: they may lie where other users cannot read them."""
    from portakernel.host.private_folder import make_private
    from portakernel.native.code_cache import Cache

    make_private("imports")
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        kept = Cache(Path("imports").absolute(), 1 << 20)
        for _ in range(2):
            stored = kept.store(_made(), "scale.cu")
            stored.path.chmod(0o666)
            kept.find(KEY)


def _as_user(act):
    """What ``act`` returns when a user who is not root calls it, without an account."""
    reading, writing = os.pipe()

    def told() -> None:
        os.write(writing, json.dumps(act()).encode())

    _as(NAME, told)
    os.close(writing)
    with open(reading, "rb") as file:
        return json.loads(file.read())


def _as(user: int, act) -> None:
    """Another user does something."""
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
            act()
        except Exception:  # noqa: BLE001 - what it was is in the fault's stderr
            traceback.print_exc()
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def _mounted(place: Path, flags: int, data: str) -> bool:
    """Whether a file system of this process's own is in that place now."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) or libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None):
        return False
    place.mkdir(exist_ok=True, parents=True)
    return libc.mount(b"tmpfs", bytes(place), b"tmpfs", flags, data.encode()) == 0


def _skip_unless(returned) -> None:
    if returned == "no namespace":
        pytest.skip("this container may not mount a file system")


def _planted(folder: Path, made) -> None:
    """An entry that is whole, as whoever may write there can make it."""
    from portakernel.native import entry

    (folder / KEY).mkdir(mode=0o755)
    entry.write(folder / KEY, made, "scale.cu")


# --- another user --------------------------------------------------------------------------------------------------


def _planted_by_another(mode, place):
    """Another user has put a whole entry into a folder that everybody can write, or into one of its own."""
    folder = Path(os.environ["PORTAKERNEL_CACHE_DIR"])
    made = _made(b"evil")  # imported before: other users cannot read what is imported
    folder.mkdir()
    folder.chmod(mode)
    if place == "theirs":
        os.chown(folder, OTHER, OTHER)
    _as(OTHER, lambda: _planted(folder, made))
    if place == "mended":
        folder.chmod(0o700)
    return _served() | {"planted": (folder / KEY / "code").exists()}


@pytest.fixture
def cache_dir() -> Iterator[Path]:
    """Where the fault's cache is to be: in a folder that other users can pass, as pytest's they cannot."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o711)
        yield Path(folder, "cache")


@as_root
@pytest.mark.parametrize(("mode", "place"), [(0o777, "ours"), (0o1777, "ours"), (0o755, "theirs"), (0o777, "theirs")])
def test_what_another_user_planted_is_not_run(fault, cache_dir, mode, place):
    outcome = fault(_planted_by_another, mode, place, env={"PORTAKERNEL_CACHE_DIR": str(cache_dir)})
    assert outcome.status == 0, outcome.stderr
    returned = outcome.returned
    assert (returned["before"], returned["stored"], returned["after"]) == (None, "code", "code")
    assert returned["in it"] is False
    (said,) = returned["said"]
    why = f"belongs to user {OTHER}" if place == "theirs" else "can be written by everybody"
    assert said.startswith(f"the cache of compiled kernels {cache_dir} {why}: ")
    assert returned["planted"] is True  # it is nobody's business here to take it away


@as_root
def test_what_another_user_planted_is_not_run_after_the_folder_was_mended(fault, cache_dir):
    """The entry is whole and its folder is in order again: its owner alone tells."""
    outcome = fault(_planted_by_another, 0o777, "mended", env={"PORTAKERNEL_CACHE_DIR": str(cache_dir)})
    assert outcome.status == 0, outcome.stderr
    says = f"{cache_dir / KEY} is discarded, to be built anew: it belongs to user {OTHER}"
    assert outcome.returned == {
        "before": None, "stored": "code", "after": "code", "in it": True, "said": [says], "planted": True
    }  # fmt: skip


def _exchanged_between():
    """Another user puts an entry into the place of one that was looked for and is about to be stored."""
    from portakernel.authoring.native import cache

    folder = Path(os.environ["PORTAKERNEL_CACHE_DIR"])
    folder.mkdir(mode=0o700)
    found = cache().find(KEY)
    assert found is None
    _planted(folder, _made(b"evil"))
    os.chown(folder / KEY, OTHER, OTHER)
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        stored = cache().store(_made(), "scale.cu")
    return [stored.code.decode(), stored.path.read_bytes().decode(), (folder / KEY).stat().st_uid == os.geteuid()]


@as_root
def test_store_returns_nothing_that_find_refused(fault, cache_dir):
    outcome = fault(_exchanged_between, env={"PORTAKERNEL_CACHE_DIR": str(cache_dir)})
    assert outcome.returned == ["code", "code", True], outcome.stderr


def _as_a_user(prepared):
    """A user who is not root, over a cache that root filled, with the modes that an image gives it."""
    folder = Path(os.environ["PORTAKERNEL_CACHE_DIR"])
    from portakernel.authoring.native import cache

    cache().store(_made(b"root's"), "scale.cu")
    folder.chmod(prepared)
    _imported()
    return _as_user(_served)


@as_root
def test_what_root_filled_in_an_image_serves_its_users(fault, cache_dir):
    outcome = fault(_as_a_user, 0o755, env={"PORTAKERNEL_CACHE_DIR": str(cache_dir)})
    assert outcome.status == 0, outcome.stderr
    assert outcome.returned["before"] == "root's"


@as_root
def test_what_a_user_may_not_enter_is_built_anew(fault, cache_dir):
    outcome = fault(_as_a_user, 0o700, env={"PORTAKERNEL_CACHE_DIR": str(cache_dir)})
    assert outcome.status == 0, outcome.stderr
    assert (outcome.returned["before"], outcome.returned["after"]) == (None, "code")
    assert outcome.returned["in it"] is False
    (said,) = outcome.returned["said"]
    assert said.startswith(f"the cache of compiled kernels {cache_dir} cannot be written (Permission denied): ")


def _own_as_user():
    os.mkdir(os.environ["HOME"])
    os.chown(os.environ["HOME"], NAME, NAME)
    _imported()
    return _as_user(_served)


@as_root
def test_a_user_who_is_not_root_has_a_cache_at_home(fault, cache_dir):
    outcome = fault(_own_as_user, env={"HOME": str(cache_dir.with_name("home"))})
    assert outcome.status == 0, outcome.stderr
    assert outcome.returned == {"before": None, "stored": "code", "after": "code", "in it": True, "said": []}


def _roots_over_a_users():
    home = Path(os.environ["HOME"])
    os.chown(home, NAME, NAME)
    return _served()


@as_root
def test_root_runs_nothing_from_a_users_home(fault):
    outcome = fault(_roots_over_a_users)
    assert outcome.status == 0, outcome.stderr
    assert outcome.returned["in it"] is False
    assert f", which belongs to user {NAME}: " in outcome.returned["said"][0]


def _without_home():
    for name in ("HOME", "XDG_CACHE_HOME"):
        os.environ.pop(name, None)
    _imported()
    return _as_user(_served) | {"litter": os.path.lexists("~")}


@as_root
def test_without_home_a_private_folder_serves(fault, cache_dir):
    outcome = fault(_without_home)
    assert outcome.status == 0, outcome.stderr
    assert (outcome.returned["after"], outcome.returned["litter"]) == ("code", False)
    assert outcome.returned["said"][0].startswith(
        "the cache of compiled kernels ~/.cache/portakernel is in a home directory, which this user does not have: "
    )


def _in_a_rootless_container():
    """The folders that lead to the cache belong to nobody whom this user namespace knows."""
    from portakernel.host import ownership
    from portakernel.host.ownership import trouble_at

    folder = Path(os.environ["PORTAKERNEL_CACHE_DIR"])
    folder.mkdir()
    for path in (folder, folder.parent):  # what lies in a sticky folder has to be the user's or root's
        os.chown(path, NAME, NAME)
    _imported()
    libc = ctypes.CDLL(None)

    def inside():
        libc.prctl(4, 1, 0, 0, 0)  # dumpable again: /proc/self is root's otherwise
        if libc.unshare(CLONE_NEWUSER):
            return "no namespace"
        Path("/proc/self/uid_map").write_text(f"{NAME} {NAME} 1", encoding="utf-8")
        ownership._unmapped_user.cache_clear()
        return [os.stat("/").st_uid, trouble_at(folder), trouble_at(Path("/usr"))]

    return _as_user(inside)


@as_root
def test_in_a_rootless_container_the_hosts_folders_lead_to_the_users(fault, cache_dir):
    outcome = fault(_in_a_rootless_container, env={"PORTAKERNEL_CACHE_DIR": str(cache_dir)})
    if outcome.returned == "no namespace":
        pytest.skip("this kernel lets users make no namespace")
    assert outcome.status == 0, outcome.stderr
    nobody = outcome.returned[0]
    assert nobody not in (0, NAME)
    assert outcome.returned[1] == ""
    assert outcome.returned[2].startswith("belongs to user ")


# --- something else in its place -----------------------------------------------------------------------------------


def _something_in_the_folders_place(what):
    place = Path(os.environ["PORTAKERNEL_CACHE_DIR"])
    if what == "pipe":
        os.mkfifo(place)
    elif what == "file":
        place.write_bytes(b"")
    elif what == "dangling link":
        place.symlink_to("nowhere")
    elif what == "link to itself":
        place.symlink_to(place)
    elif what == "device":
        place.symlink_to("/dev/zero")
    return _served()


@pytest.mark.parametrize("what", ["pipe", "file", "dangling link", "link to itself", "device"])
def test_something_in_the_caches_place(fault, tmp_path, what):
    outcome = fault(_something_in_the_folders_place, what, env={"PORTAKERNEL_CACHE_DIR": str(tmp_path / "cache")})
    assert outcome.status == 0, outcome.stderr
    assert (outcome.returned["before"], outcome.returned["after"]) == (None, "code")
    assert outcome.returned["in it"] is False
    assert len(outcome.returned["said"]) == 1


def _something_in_an_entrys_place(name, what):
    """An entry, or a file of it, is exchanged for something else; then it is looked for, and built."""
    from portakernel.authoring.native import cache

    folder = cache().store(_made(b"old"), "scale.cu").path.parent
    place = folder / name
    if what == "cut":
        os.truncate(place, place.stat().st_size // 2)
    elif what == "altered":
        content = bytearray(place.read_bytes())
        content[len(content) // 2] ^= 1
        place.write_bytes(content)
    elif what == "grown":
        with place.open("ab") as file:
            file.truncate(1 << 40)
    else:
        shutil.rmtree(place) if place.is_dir() else place.unlink()
        if what == "pipe":
            os.mkfifo(place)
        elif what == "folder":
            place.mkdir()
            (place / "something").touch()
        elif what == "dangling link":
            place.symlink_to("nowhere")
        elif what == "device":
            place.symlink_to("/dev/zero")
        elif what == "deep JSON":
            place.write_text("[" * 500_000, encoding="utf-8")
    return _served(b"new")


WHOLE = ["pipe", "folder", "dangling link", "device"]


@pytest.mark.parametrize(
    ("name", "what"),
    [
        *[(".", what) for what in WHOLE],
        *[("code", what) for what in [*WHOLE, "cut", "altered", "grown"]],
        *[("entry.json", what) for what in [*WHOLE, "cut", "altered", "deep JSON"]],
    ],
)
def test_something_in_an_entrys_place(fault, tmp_path, name, what):
    outcome = fault(
        _something_in_an_entrys_place, name, what, env={"PORTAKERNEL_CACHE_DIR": str(tmp_path / "cache")}, seconds=20
    )
    assert outcome.status == 0, outcome.stderr
    assert outcome.returned["before"] is None
    assert (outcome.returned["after"], outcome.returned["in it"]) == ("new", True)
    (said,) = outcome.returned["said"]
    assert said.startswith(f"{tmp_path / 'cache' / KEY} is discarded, to be built anew: ")


# --- file systems that refuse --------------------------------------------------------------------------------------


def _on_a_file_system(flags, data):
    place = Path(os.environ["PORTAKERNEL_CACHE_DIR"]).parent / "mounted"
    if not _mounted(place, flags, data):
        return "no namespace"
    os.environ["PORTAKERNEL_CACHE_DIR"] = str(place / "cache")
    return _served(b"c" * 200_000)


@as_root
@pytest.mark.parametrize(
    ("flags", "data", "reason"),
    [
        (0, "size=64k", "is full (No space left on device)"),
        (0, "nr_inodes=3", "is full (No space left on device)"),
        (MS_RDONLY, "", "is read-only (Read-only file system)"),
    ],
    ids=["full", "no inodes", "read-only"],
)
def test_a_file_system_that_refuses(fault, cache_dir, flags, data, reason):
    outcome = fault(_on_a_file_system, flags, data, env={"PORTAKERNEL_CACHE_DIR": str(cache_dir)})
    assert outcome.status == 0, outcome.stderr
    _skip_unless(outcome.returned)
    assert outcome.returned["after"] == "c" * 200_000
    assert outcome.returned["in it"] is False
    (said,) = outcome.returned["said"]
    assert f" {reason}: " in said


def _files_may_be_small_only():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    returned = _served(b"c" * 200_000)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return [len(returned["stored"]), returned["after"], returned["said"][-1]]


def test_a_limit_on_files_leaves_the_code_in_memory(fault):
    outcome = fault(_files_may_be_small_only)
    assert outcome.status == 0, outcome.stderr
    assert outcome.returned[:2] == [200_000, None]
    assert "cannot be used (File too large): kernels are compiled anew in each process; " in outcome.returned[2]


def _no_descriptors():
    """Every descriptor is taken while an entry is looked for: it is whole, and stays."""
    from portakernel.authoring.native import cache

    stored = cache().store(_made(), "scale.cu")
    taken = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        during = cache().find(KEY)
        for descriptor in taken:
            os.close(descriptor)
        after = cache().find(KEY)
    return [during is None, after is not None, stored.path.exists(), [str(one.message) for one in caught]]


def test_where_descriptors_are_exhausted_nothing_is_discarded(fault):
    outcome = fault(_no_descriptors)
    assert outcome.returned == [True, True, True, []], outcome.stderr


def _library_from_noexec(code):
    """A library on a file system from which nothing may be executed, and nothing else that could be written."""
    from portakernel.authoring.native import cache, load_library

    place = Path(os.environ["PORTAKERNEL_CACHE_DIR"])
    if not _mounted(place, MS_NOEXEC, ""):
        return "no namespace"
    os.environ["TMPDIR"] = str(place)
    stored = cache().store(_made(bytes.fromhex(code), form="library"), "answer.cu")
    try:
        ctypes.CDLL(str(stored.path))
    except OSError as error:
        plain = str(error)
    else:
        plain = ""
    return [plain, load_library(stored).answer()]


def _library(folder: Path, number: int) -> bytes:
    compiler = shutil.which("cc") or pytest.skip("there is no C compiler here")
    (folder / "answer.c").write_text(f"int answer(void) {{ return {number}; }}\n", encoding="utf-8")
    subprocess.run([compiler, "-shared", "-o", folder / "answer.so", folder / "answer.c"], check=True, timeout=60)
    return (folder / "answer.so").read_bytes()


@as_root
def test_a_library_is_loaded_from_a_file_system_mounted_noexec(fault, cache_dir, tmp_path):
    code = _library(tmp_path, 42).hex()
    outcome = fault(_library_from_noexec, code, env={"PORTAKERNEL_CACHE_DIR": str(cache_dir)})
    assert outcome.status == 0, outcome.stderr
    _skip_unless(outcome.returned)
    assert outcome.returned[0].endswith("failed to map segment from shared object")
    assert outcome.returned[1] == 42


def _library_after_closed_descriptors(codes):
    """A program that closes every descriptor, as daemons do, between the loading of two libraries."""
    from portakernel.authoring.native import load_library

    answers = []
    for code in codes:
        answers.append(load_library(_made(bytes.fromhex(code), form="library")).answer())
        os.closerange(3, 256)
    return answers


def test_no_library_is_taken_for_another_at_the_same_descriptor(fault, tmp_path):
    codes = [_library(tmp_path, number).hex() for number in (1, 2, 3)]
    assert fault(_library_after_closed_descriptors, codes).returned == [1, 2, 3]


# --- killed, and side by side --------------------------------------------------------------------------------------


def _writer_killed_at(moment):
    """A writer is killed while it writes an entry; the next one comes a minute later."""
    from portakernel.authoring.native import cache
    from portakernel.native import entry

    folder = cache().folder
    child = os.fork()
    if child == 0:
        real = entry._put

        def put(path, content):
            real(path, content[: len(content) // 2] if path.name == moment else content)
            if path.name == moment:
                os.kill(os.getpid(), signal.SIGKILL)

        entry._put = put
        cache().store(_made(b"half"), "scale.cu")
        os._exit(0)
    _, status = os.waitpid(child, 0)
    left = [path.name for path in folder.iterdir()]
    for path in folder.iterdir():
        os.utime(path, (time.time() - 90,) * 2)
    returned = _served()
    return [os.WTERMSIG(status), len(left), left[0][:9], returned, sorted(path.name for path in folder.iterdir())]


@pytest.mark.parametrize("moment", ["code", "assembly.z", "entry.json"])
def test_what_a_killed_writer_left_is_gone_a_minute_later(fault, moment):
    outcome = fault(_writer_killed_at, moment)
    assert outcome.status == 0, outcome.stderr
    served = {"before": None, "stored": "code", "after": "code", "in it": True, "said": []}
    assert outcome.returned == [signal.SIGKILL, 1, ".writing-", served, [KEY]]


def _writer_at_work():
    """A slow writer holds its folder while others come, for however long."""
    from portakernel.authoring.native import cache
    from portakernel.host.private_folder import in_use

    live = cache().folder / ".writing-live"
    live.mkdir(parents=True, mode=0o700)
    cache().folder.chmod(0o700)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with in_use(live):
            os.write(writing, b"1")
            signal.pause()
    os.read(reading, 1)
    os.utime(live, (0, 0))
    served = _served()
    during = live.exists()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.utime(live, (0, 0))
    cache().tidy()
    return [served["after"], during, live.exists()]


def test_what_a_live_writer_has_stays_however_old_it_is(fault):
    outcome = fault(_writer_at_work)
    assert outcome.returned == ["code", True, False], outcome.stderr


def _writers_race(count, rounds):
    """Processes that store, find, alter and discard the same entries at once."""
    from portakernel.authoring.native import cache

    children = []
    for number in range(count):
        child = os.fork()
        if child == 0:
            warnings.simplefilter("ignore")
            status = 0
            for turn in range(rounds):
                made = _made(b"same" * 1000, number=turn % 3)
                stored = cache().store(made, "scale.cu")
                found = cache().find(made.key)
                if stored.code != made.code or (found is not None and found.code != made.code):
                    status = 1
                if turn % 5 == number:
                    cache().discard(cache().folder / made.key)
                if turn % 7 == number:
                    with contextlib.suppress(OSError):
                        (cache().folder / made.key / "code").write_bytes(b"altered")
            os._exit(status)
        children.append(child)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    warnings.simplefilter("ignore")
    last = [cache().store(_made(b"same" * 1000, number=number), "scale.cu") for number in range(3)]
    litter = [path.name for path in cache().folder.iterdir() if path.name.startswith(".")]
    return [statuses, [one.path.read_bytes() == one.code for one in last], litter]


def test_writers_that_race_hand_out_nothing_but_what_is_whole(fault):
    outcome = fault(_writers_race, 4, 60)
    assert outcome.status == 0, outcome.stderr
    assert outcome.returned == [[0] * 4, [True] * 3, []]


def _private_folder_of_the_killed():
    """Of two processes with a private folder one is killed; then a third one makes one."""
    from portakernel.host.private_folder import make_private

    tempfile.tempdir = str(Path("temporary").absolute())
    Path(tempfile.tempdir).mkdir()
    children = []
    for fate in (signal.SIGKILL, None):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            made = make_private("cache")
            os.write(writing, bytes(made))
            signal.pause()
        children.append((child, os.read(reading, 4096).decode()))
        if fate is not None:
            os.kill(child, fate)
            os.waitpid(child, 0)
    for _, folder in children:
        os.utime(folder, (time.time() - 90,) * 2)
    mine = make_private("cache")
    left = [os.path.exists(folder) for _, folder in children]
    os.kill(children[1][0], signal.SIGKILL)
    return [left, stat.S_IMODE(mine.stat().st_mode)]


def test_a_killed_processs_private_folder_goes_and_a_live_ones_stays(fault):
    outcome = fault(_private_folder_of_the_killed)
    assert outcome.returned == [[False, True], 0o700], outcome.stderr


def _lock_held():
    """Another process holds the lock of what is built here, and does not end."""
    from portakernel.authoring.native import cache

    folder = cache().folder / "locks"
    folder.mkdir(parents=True, mode=0o700)
    cache().folder.chmod(0o700)
    descriptor = os.open(folder / f"{KEY}.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    begin = time.perf_counter()
    with cache().locked(KEY, 0.3):
        return [time.perf_counter() - begin > 0.2, _served()["after"]]


def test_a_lock_that_is_held_is_waited_for_no_longer_than_a_build_takes(fault):
    assert fault(_lock_held, seconds=20).returned == [True, "code"]


# --- Inductor ------------------------------------------------------------------------------------------------------


def _inductor_in_a_folder_of_anothers():
    """Somebody made the folder that Inductor uses by default, whose name everybody can guess."""
    import torch

    import portakernel

    temporary = Path("temporary").absolute()
    temporary.mkdir()
    temporary.chmod(0o1777)
    tempfile.tempdir = str(temporary)
    import torch._inductor.compile_fx
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    os.environ.pop("TORCHINDUCTOR_CACHE_DIR", None)
    guessed = Path(default_cache_dir())
    guessed.mkdir(exist_ok=True)
    guessed.chmod(0o777)
    before = set(guessed.rglob("*"))
    x = torch.randn(4, 24)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        portakernel.warmup("silu_and_mul", x, kernel="inductor.silu_and_mul")
    from portakernel import ops

    with portakernel.use("inductor.silu_and_mul"):
        y = ops.silu_and_mul(x)
    gate, up = x.chunk(2, -1)
    ours = [str(one.message) for one in caught if "Inductor's cache directory" in str(one.message)]
    used = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    return [
        bool(torch.allclose(y, torch.nn.functional.silu(gate) * up)),
        [path.name for path in guessed.rglob("*") if path not in before],
        any(used.rglob("*.so")),
        used.is_relative_to(temporary),
        len(ours),
        ours[0].startswith(f"Inductor's cache directory {guessed} can be written by everybody: {used} serves"),
    ]


@needs_cxx
def test_inductor_builds_nothing_in_a_folder_that_everybody_can_write(fault):
    outcome = fault(_inductor_in_a_folder_of_anothers, seconds=300)
    assert outcome.status == 0, outcome.stderr
    assert outcome.returned == [True, [], True, True, 1, True]
