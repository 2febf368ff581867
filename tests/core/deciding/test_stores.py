"""Stores of measurements that a process cannot read: what is said, and that calls go on without them."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

import portakernel
from portakernel import runtime
from portakernel.config import Config
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.deciding.sources import measurements
from portakernel.errors import ConfigWarning
from portakernel.registry.registry import Registry
from portakernel.tuning.place import own_root


@pytest.fixture
def no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "store").write_text("no folder", encoding="utf-8")
    monkeypatch.setenv("PORTAKERNEL_TUNING_DIR", str(tmp_path / "store"))
    return tmp_path / "store"


def test_what_ships_decides_on_where_the_user_s_store_is_no_directory(tmp_path: Path, no_folder: Path) -> None:
    registry = Registry()
    without = measurements(Config(tuning_dir=str(tmp_path / "none")), registry)
    for root in (no_folder, no_folder / "below"):
        found = measurements(Config(tuning_dir=str(root)), registry)
        assert (found and found.places()) == (without and without.places())


def test_a_process_says_so_once_at_its_beginning(no_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "_dispatcher", functools.cache(Dispatcher))
    said = f"the store of measurements {no_folder} is no directory: nothing of it decides; PORTAKERNEL_TUNING_DIR names"
    with pytest.raises(ConfigWarning, match=said):
        runtime.dispatcher()
    runtime.dispatcher()
    monkeypatch.setenv("PORTAKERNEL_TUNING", "off")
    monkeypatch.setattr(runtime, "_dispatcher", functools.cache(Dispatcher))
    runtime.dispatcher()


def test_loading_measurements_again_says_so_too(no_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PORTAKERNEL_TUNING_DIR")
    monkeypatch.setattr(runtime, "_dispatcher", functools.cache(Dispatcher))
    runtime.dispatcher()
    monkeypatch.setenv("PORTAKERNEL_TUNING_DIR", str(no_folder))
    with pytest.warns(ConfigWarning, match="is no directory") as told:
        portakernel.load_tuning()
    assert told[0].filename == __file__


def test_a_store_of_a_user_without_a_home_is_not_made_in_the_working_folder() -> None:
    assert str(own_root("~/.cache/portakernel/tuning")) == "~/.cache/portakernel/tuning"
    assert own_root("store").is_absolute()
