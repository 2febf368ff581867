"""``portakernel cache``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from portakernel.authoring.native import CodeObject, KernelFacts, cache
from portakernel.words.target import Target


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PORTAKERNEL_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def entries() -> list[Path]:
    """Two entries, for two targets."""
    found = []
    for number, target in enumerate(("nvidia:sm_90", "amd:gfx942")):
        key = f"{number:040x}-{0:012x}"
        facts = (KernelFacts("rms_norm", "rms_norm"),)
        made = CodeObject(key, "code object", Target.parse(target), "clang 22.1.8", facts, None, bytes(2000))
        stored = cache().store(made, "rms_norm.hip T=float").path
        assert stored is not None
        found.append(stored.parent)
    return found


def test_an_unknown_action_is_answered_with_those_there_are(run):
    ran = run("cache foo")
    assert (ran.status, ran.err.splitlines()[0]) == (
        2,
        "portakernel: Invalid value for 'list|clear|verify': 'foo' is not one of 'list', 'clear', 'verify'.",
    )


def test_an_empty_cache_is_told_with_its_folder_and_limit(run, folder):
    assert (run("cache list").status, run("cache list").out) == (0, f"{folder}: 0 entries, 0.0 MiB of 4096\n")


def test_entries_are_listed_with_what_they_are(run, entries, folder):
    lines = run("cache list").out.splitlines()
    assert lines[0] == f"{folder}: 2 entries, 0.0 MiB of 4096"
    assert lines[1].split() == ["key", "kernels", "target", "compiler", "KiB", "used"]
    rows = sorted(line.split()[:5] for line in lines[2:])
    assert rows[0] == ["000000000000", "rms_norm", "amd:gfx942", "clang", "22.1.8"]
    assert rows[1][2] == "nvidia:sm_90"
    assert len(run("cache list --target amd:gfx942").out.splitlines()) == 3


def test_verify_discards_what_was_altered_and_says_so(run, entries, folder):
    assert run("cache verify").status == 0
    assert run("cache verify").out.splitlines()[-1] == "2 whole, 0 broken"
    (entries[0] / "code").write_bytes(b"altered")
    listed = run("cache list")
    assert listed.status == 0
    assert listed.out.splitlines()[-1] == (f"{entries[0].name}: code was cut short or altered: its digest is another")
    verified = run("cache verify")
    assert verified.status == 1
    assert verified.out.splitlines()[1:] == [
        f"{entries[0].name}: code was cut short or altered: its digest is another; discarded",
        "1 whole, 1 broken",
    ]
    assert not entries[0].exists()
    assert run("cache verify").status == 0


def test_clear_discards_all_or_one_targets(run, entries):
    cleared = run("cache clear --target amd:gfx942")
    assert (cleared.status, cleared.out.splitlines()[-1]) == (0, "1 discarded")
    assert [path.exists() for path in entries] == [True, False]
    assert run("cache clear").status == 0
    assert cache().entries() == []


def test_json_holds_the_same(run, entries, folder):
    answer = run("cache", "list", "--json").json
    assert (answer["folder"], answer["limit_bytes"], answer["discarded"]) == (str(folder), 4096 << 20, [])
    assert [entry["target"] for entry in sorted(answer["entries"], key=lambda one: one["key"])] == [
        "nvidia:sm_90",
        "amd:gfx942",
    ]
    assert run("cache", "clear", "--json").json["discarded"] == sorted(
        (path.name for path in entries), key=[one["key"] for one in answer["entries"]].index
    )


def test_bad_input_is_refused(run, monkeypatch):
    assert run("cache empty").status == 2
    monkeypatch.setenv("PORTAKERNEL_CACHE_MIB", "much")
    assert run("cache list").err == "portakernel: PORTAKERNEL_CACHE_MIB is 'much'; give a whole number, 0 or more\n"


def test_it_needs_no_torch():
    import subprocess

    program = (
        "import sys; from portakernel.cli import main; status = main(['cache', 'list']);"
        " sys.exit(status or bool({'torch', 'triton', 'cupy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, capture_output=True).returncode == 0


@pytest.mark.parametrize("action", ["list", "clear"])
def test_a_target_that_there_is_not_is_an_error_and_clears_nothing(run, entries, action):
    for wrong in ("nvidia:gfx942", "sm_9", "nope"):
        asked = run(f"cache {action} --target {wrong}")
        assert (asked.status, asked.out) == (2, "")
        assert wrong.rpartition(":")[2] in asked.err
    assert len(cache().entries()) == 2


def test_a_folder_that_somebody_else_can_write_is_named_and_not_read(run, entries, folder):
    folder.chmod(0o777)
    listed = run("cache list")
    why = f"the cache of compiled kernels {folder} can be written by everybody"
    remedy = "set PORTAKERNEL_CACHE_DIR to a folder that nobody else can write, or take this one away"
    assert (listed.status, listed.out) == (
        0,
        f"{folder}: 0 entries, 0.0 MiB of 4096\n{why}, and is not read; {remedy}\n",
    )
    assert run("cache", "list", "--json").json["distrusted"] == why
    assert run("cache clear").out.splitlines()[-1] == "0 discarded"
    assert all(path.exists() for path in entries)


def test_what_killed_writers_left_is_removed_by_verify_and_clear(run, entries, folder):
    for action in ("list", "verify", "clear"):
        left = folder / ".discarded-half"
        left.mkdir(exist_ok=True)
        assert run(f"cache {action}").status == 0
        assert left.exists() == (action == "list")
