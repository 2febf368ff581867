"""Faults written by hand into kernels: each still fits its source, and the request that shows it can be read."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import yaml

from portakernel_kit.conformance.drawn.spelling import parse_request

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "kit" / "faults"
FILES = sorted(FOLDER.glob("*/*.yaml"))
KEYS = ["kernel", "file", "before", "after", "kind", "why", "shows"]
# What one request cannot show: a state that calls share.
MOST_UNSHOWN = 15


def faults(file):
    return yaml.load(file.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def test_no_fault_is_lost():
    counts = {half: sum(len(faults(file)) for file in FOLDER.glob(f"{half}/*.yaml")) for half in ("seen", "blind")}
    assert counts == {"seen": 150, "blind": 100}


def test_no_fault_is_written_twice():
    found = [(fault["file"], fault["before"], fault["after"]) for file in FILES for fault in faults(file)]
    assert len(set(found)) == len(found)


def test_few_faults_are_shown_by_no_request():
    assert sum(not fault["shows"] for file in FILES for fault in faults(file)) <= MOST_UNSHOWN


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_faults_fit_their_sources(file, registry):
    for fault in faults(file):
        assert list(fault) == KEYS
        assert fault["kind"].isidentifier()
        assert fault["why"]
        assert registry.kernels[fault["kernel"]].op == file.stem
        source = ROOT / "plugins" / fault["file"]
        text = source.read_text(encoding="utf-8")
        assert text.count(fault["before"]) == 1, fault["why"]
        assert fault["after"] != fault["before"]
        if source.suffix == ".py":
            ast.parse(text.replace(fault["before"], fault["after"]))
        if fault["shows"]:
            assert parse_request(fault["shows"], registry.kernels).kernel == fault["kernel"]
