"""Who else can change a file or what leads to it: owners, modes, links, sticky folders, private groups."""

from __future__ import annotations

import grp
import os
import pwd
from pathlib import Path
from types import SimpleNamespace

import pytest

from portakernel.host import ownership
from portakernel.host.ownership import trouble_at, trouble_with

STRANGER = 54321
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "cache"
    made.mkdir(mode=0o755)
    return made


@pytest.fixture
def groups(monkeypatch):
    """Puts users and groups in the place of the system's, with this process's user as ``user``."""

    def put(user: int, users: dict[int, tuple[str, int]], known: dict[int, tuple[str, list[str]]]) -> None:
        def account(number: int) -> object:
            name, group = users[number]
            return SimpleNamespace(pw_name=name, pw_gid=group)

        def group(number: int) -> object:
            name, members = known[number]
            return SimpleNamespace(gr_name=name, gr_mem=members)

        ownership._is_private.cache_clear()
        monkeypatch.setattr(os, "geteuid", lambda: user)
        monkeypatch.setattr(pwd, "getpwuid", account)
        monkeypatch.setattr(grp, "getgrgid", group)

    yield put
    ownership._is_private.cache_clear()


def status(mode: int, user: int, group: int) -> os.stat_result:
    return os.stat_result((mode, 1, 1, 1, user, group, 0, 0, 0, 0))


def test_a_folder_of_ones_own_is_nobody_elses(folder):
    assert trouble_at(folder) == ""
    assert trouble_with(folder.lstat()) == ""


def test_what_does_not_exist_yet_is_as_good_as_what_leads_to_it(folder):
    assert trouble_at(folder / "a" / "b") == ""
    folder.chmod(0o777)
    assert trouble_at(folder / "a" / "b") == f"is below {folder}, which can be written by everybody"


@pytest.mark.parametrize("mode", [0o757, 0o777, 0o1777])
def test_a_folder_that_everybody_can_write(folder, mode):
    folder.chmod(mode)
    assert trouble_at(folder) == "can be written by everybody"


def test_a_folder_that_a_group_can_write(folder):
    folder.chmod(0o775)
    if os.geteuid() == 0:
        os.chown(folder, -1, STRANGER)
        assert trouble_at(folder) == f"can be written by group {STRANGER}"
        os.chown(folder, -1, 0)
        assert trouble_at(folder) == f"can be written by group {grp.getgrgid(0).gr_name} (0)"


def test_a_group_is_nobody_else_where_it_is_the_users_own(groups):
    users, shared = {1000: ("ann", 1000), 1001: ("bob", 50)}, {1000: ("ann", []), 50: ("staff", [])}
    groups(1000, users, shared)
    assert trouble_with(status(0o40775, 1000, 1000)) == ""
    assert trouble_with(status(0o40777, 1000, 1000)) == "can be written by everybody"
    assert trouble_with(status(0o40775, 1000, 50)) == "can be written by group staff (50)"
    assert trouble_with(status(0o40775, 0, 1000)) == "can be written by group ann (1000)"


@pytest.mark.parametrize(
    ("users", "known"),
    [
        ({1000: ("ann", 1000)}, {1000: ("ann", ["ann", "bob"])}),
        ({1000: ("ann", 1000)}, {1000: ("users", [])}),
        ({1000: ("ann", 50)}, {1000: ("ann", [])}),
    ],
    ids=["another member", "another name", "another primary group"],
)
def test_a_group_that_others_may_be_in_is_not_the_users_own(groups, users, known):
    groups(1000, users, known)
    assert trouble_with(status(0o40775, 1000, 1000)) == f"can be written by group {known[1000][0]} (1000)"


def test_a_user_without_an_account_has_no_group_of_its_own(groups):
    groups(1000, {}, {})
    assert trouble_with(status(0o40775, 1000, 1000)) == "can be written by group 1000"


def test_roots_group_is_not_its_own(groups):
    groups(0, {0: ("root", 0)}, {0: ("root", [])})
    assert trouble_with(status(0o40775, 0, 0)) == "can be written by group root (0)"


@as_root
def test_what_belongs_to_another_user(folder):
    os.chown(folder, STRANGER, -1)
    assert trouble_at(folder) == f"belongs to user {STRANGER}"
    assert trouble_at(folder / "mine") == f"is below {folder}, which belongs to user {STRANGER}"


def test_roots_are_as_good_as_ones_own(groups):
    groups(1000, {}, {})
    assert trouble_with(status(0o40755, 0, 0)) == ""
    assert trouble_with(status(0o40755, 1002, 0)) == "belongs to user 1002"


def test_a_sticky_folder_may_lead_to_ones_own_and_is_none_itself(folder):
    folder.chmod(0o1777)
    mine = folder / "mine"
    mine.mkdir()
    assert trouble_at(mine) == ""
    assert trouble_at(folder) == "can be written by everybody"


@as_root
def test_in_a_sticky_folder_what_is_anothers_leads_nowhere(folder):
    folder.chmod(0o1777)
    (folder / "theirs").mkdir()
    os.chown(folder / "theirs", STRANGER, -1)
    assert trouble_at(folder / "theirs") == f"belongs to user {STRANGER}"


def test_a_link_of_ones_own_is_followed(folder, tmp_path):
    link = tmp_path / "link"
    link.symlink_to("cache")
    assert trouble_at(link) == ""
    folder.chmod(0o777)
    assert trouble_at(link) == "can be written by everybody"
    assert trouble_at(link / "below") == f"is below {folder}, which can be written by everybody"


@as_root
def test_a_link_of_somebody_elses_is_not(folder, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(folder)
    os.chown(link, STRANGER, -1, follow_symlinks=False)
    assert trouble_at(link) == f"is reached by the link {link}, which belongs to user {STRANGER}"


def test_what_a_link_leads_through_is_looked_at_too(folder, tmp_path):
    (folder / "open").mkdir()
    (folder / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(folder / "open" / ".." / "there")
    (folder / "there").mkdir()
    assert trouble_at(tmp_path / "link") == f"is below {folder / 'open'}, which can be written by everybody"


def test_links_that_lead_to_each_other_end(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert trouble_at(tmp_path / "a") == f"is reached by the link {tmp_path / 'a'}, which leads to itself"


def test_a_relative_path_is_looked_at_from_the_current_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert trouble_at(Path("inner")) == ""
    folder.chmod(0o777)
    assert trouble_at(Path("inner")) == f"is below {folder}, which can be written by everybody"
