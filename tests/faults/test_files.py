"""Files that portakernel reads are regular and bounded: what stands in a file's place is an error; nothing waits."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import fault_fakes as fakes
import pytest


def _socket(path):
    os.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)


def _large(path):
    with open(path, "wb") as file:
        file.truncate(1 << 40)


STANDS = {
    "a pipe": (os.mkfifo, "is a named pipe; a regular file is accepted"),
    "a socket": (_socket, "is a socket; a regular file is accepted"),
    "/dev/zero": (lambda path: os.symlink("/dev/zero", path), "is a character device; a regular file is accepted"),
    "a folder": (os.mkdir, "is a folder; a regular file is accepted"),
    "a terabyte": (_large, "has 1099511627776 bytes; at most "),
    "a loop": (lambda path: os.symlink(path.name, path), "Too many levels of symbolic links"),
    "deep JSON": (lambda path: path.write_text("[" * 200_000, encoding="utf-8"), "nested"),
    "deep YAML": (lambda path: path.write_text("a: " + "{b: " * 100_000, encoding="utf-8"), "nested deeper than 24"),
    "aliases": (
        lambda path: path.write_text(
            "a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9)), "utf-8"
        ),
        "expands to more than 50000 values",
    ),
}
BOTH = ["a pipe", "a socket", "/dev/zero", "a folder", "a terabyte", "a loop"]
YAML, JSON = [*BOTH, "deep YAML", "aliases"], [*BOTH, "deep JSON"]


def _manifest(kind):
    folder = fakes.write("ill", kernel="k", source="def run(*a, **k): ...")
    (folder / "plugin.yaml").unlink()
    STANDS[kind][0](folder / "plugin.yaml")
    return {"result": fakes.call(), "faults": fakes.faults()}


@pytest.mark.parametrize("kind", YAML)
def test_what_stands_in_a_manifests_place_breaks_its_package_alone(fault, kind):
    outcome = fault(_manifest, kind)
    assert outcome.status == 0, outcome.stderr
    if kind == "a loop":  # which no look at the file tells from none
        assert outcome.returned["faults"][0][2].endswith("fake_ill holds neither plugin.yaml nor backend.yaml")
    else:
        ((name, stage, reason),) = outcome.returned["faults"]
        assert (name, stage) == ("ill", "manifest")
        assert STANDS[kind][1] in reason
    assert outcome.returned["result"] == [3, 3, 3]


def _policy(kind):
    file = Path("policy.yaml").absolute()
    STANDS[kind][0](file)
    import portakernel

    before = fakes.call()
    try:
        portakernel.load_policy(file)
    except portakernel.errors.PolicyFileError as error:
        return [before, str(error).partition("policy.yaml")[2], fakes.call()]


@pytest.mark.parametrize("kind", YAML)
def test_what_stands_in_a_policys_place_is_an_error_and_the_one_before_stays(fault, kind):
    outcome = fault(_policy, kind)
    assert outcome.status == 0, outcome.stderr
    before, said, after = outcome.returned
    assert before == after == [3, 3, 3]
    assert STANDS[kind][1] in said


def _config_map():
    """A policy as Kubernetes mounts it: links to links, which are followed."""
    data = Path("mount/..2026").absolute()
    data.mkdir(parents=True)
    (data / "policy.yaml").write_text("schema_version: 1\ndeny: triton\n", encoding="utf-8")
    Path("mount/..data").symlink_to("..2026")
    Path("mount/policy.yaml").symlink_to("..data/policy.yaml")
    import portakernel

    portakernel.load_policy("mount/policy.yaml")
    return fakes.call()


def test_a_policy_may_be_a_link(fault):
    assert fault(_config_map).returned == [3, 3, 3]


def _calls(kind):
    file = Path("calls.yaml").absolute()
    STANDS[kind][0](file)
    from portakernel.cli.calls_file import load_calls
    from portakernel.errors import ManifestError

    try:
        load_calls(file)
    except ManifestError as error:
        return str(error)


@pytest.mark.parametrize("kind", YAML)
def test_what_stands_in_the_place_of_calls_is_an_error(fault, kind):
    outcome = fault(_calls, kind)
    assert STANDS[kind][1] in outcome.returned, outcome.stderr


def _json(kind, reader):
    file = Path("results.json").absolute()
    STANDS[kind][0](file)
    from portakernel.errors import ArgumentValueError
    from portakernel.matrix.proofs import read_output
    from portakernel_kit.bench.report import read_report

    try:
        read_report(file) if reader == "report" else read_output(file, {})
    except ArgumentValueError as error:
        return str(error)


@pytest.mark.parametrize("kind", JSON)
@pytest.mark.parametrize("reader", ["report", "proofs"])
def test_what_stands_in_the_place_of_results_is_an_error(fault, reader, kind):
    outcome = fault(_json, kind, reader)
    assert STANDS[kind][1] in outcome.returned, outcome.stderr
