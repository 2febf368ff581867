"""``portakernel demo``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from portakernel.cli import residual_block
from portakernel.cli.demo import MOST_BYTES, OPS


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text("The reasons are the product.\n" * 4, encoding="utf-8")
    return file


def test_json_form_key_by_key_and_both_sides_agree(run: Callable, text: Path) -> None:
    ran = run("demo", str(text), "--device", "cpu", "--json")
    data = ran.json
    assert ran.status == 0
    assert list(data) == [
        "agrees", "file", "bytes", "truncated", "device", "dtype", "fault", "loss", "tolerance", "differences",
        "decisions", "elsewhere", "stats",
    ]  # fmt: skip
    assert data["agrees"] is True
    assert (data["file"], data["bytes"], data["truncated"]) == (str(text), 116, False)
    assert list(data["device"]) == ["target", "name", "torch_device"]
    assert data["loss"]["after"] < data["loss"]["before"]
    assert all(d["within"] == (d["relative"] <= data["tolerance"]) for d in data["differences"])
    compared = {d["what"] for d in data["differences"]}
    assert {"logits", "loss", "gradient of norm_weight", "head after the step"} <= compared
    decided = {(d["op"], phase) for d in data["decisions"] for phase in d["phases"]}
    assert decided == {("add", "inference"), ("add", "training")} | {
        ("rms_norm", phase) for phase in ("inference", "training", "backward")
    }
    assert [(d["target"], d["op"]) for d in data["elsewhere"]] == [
        (target, op) for target in ("nvidia:sm_90", "amd:gfx942") for op in OPS
    ]
    assert list(data["stats"][0]) == ["op", "phase", "target", "kernel", "calls", "fallback"]


@pytest.mark.parametrize("op", OPS)
def test_one_wrong_element_is_found(run: Callable, text: Path, op: str) -> None:
    ran = run("demo", str(text), "--device", "cpu", "--fault", op)
    assert ran.status == 1
    assert "TOO LARGE" in ran.out
    last = (
        f"portakernel and plain torch DISAGREE, as --fault {op} asked: the difference is more than rounding explains."
    )
    assert ran.out.splitlines()[-1] == last


def test_people_read_decisions_differences_and_the_same_for_hardware_that_is_not_here(
    run: Callable, text: Path
) -> None:
    out = run("demo", str(text), "--device", "cpu").out
    assert out.startswith(f"A pre-norm residual block over {text}: 116 bytes, float32\n")
    for part in (
        "\nrms_norm (backward)\n",
        "\nDifference from the same in plain torch (at most ",
        "\nrms_norm on an H200 (nvidia:sm_90), asked from here\n",
        "\nadd on an MI300X (amd:gfx942), asked from here\n",
        "\nCalls so far (portakernel.stats())\n",
    ):
        assert part in out
    assert out.endswith("\nportakernel and plain torch agree.\n")


def test_readme_is_the_default_and_its_absence_is_told(
    run: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run("demo")
    assert ran.status == 2
    assert ran.err == "portakernel: there is no README.md here; name a file: portakernel demo FILE\n"
    Path("README.md").write_text("some text", encoding="utf-8")
    assert run("demo --device cpu --json").json["file"] == "README.md"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "{file}: no such file"),
        (b"", "{file}: is empty; the demo needs at least 2, since each byte predicts the next"),
        (b"a", "{file}: holds 1 byte; the demo needs at least 2, since each byte predicts the next"),
    ],
)
def test_a_file_that_cannot_serve_is_bad_input(
    run: Callable, tmp_path: Path, content: bytes | None, message: str
) -> None:
    file = tmp_path / "some file.txt"
    if content is not None:
        file.write_bytes(content)
    ran = run("demo", str(file))
    assert (ran.status, ran.out, ran.err) == (2, "", f"portakernel: {message.format(file=file)}\n")


def test_a_folder_is_bad_input(run: Callable, tmp_path: Path) -> None:
    ran = run("demo", str(tmp_path))
    assert ran.status == 2
    assert ran.err.startswith(f"portakernel: {tmp_path}: cannot be read: ")


@pytest.mark.parametrize("arguments", ["--fault matmul", "--device npu:9"])
def test_names_that_nothing_has_are_bad_input(run: Callable, text: Path, arguments: str) -> None:
    ran = run("demo", str(text), *arguments.split())
    assert (ran.status, ran.out) == (2, "")
    assert (
        f"unknown {'op of the demo' if 'fault' in arguments else 'device'} '{arguments.split()[1]}'; known: " in ran.err
    )


def test_of_a_large_binary_file_the_beginning_is_read(run: Callable, tmp_path: Path) -> None:
    file = tmp_path / "binary"
    file.write_bytes(bytes(range(256)) * 40)
    ran = run("demo", str(file), "--device", "cpu")
    assert ran.status == 0
    assert ran.out.startswith(f"A pre-norm residual block over {file}: the first {MOST_BYTES} bytes, float32\n")


def test_a_missing_or_infinite_value_is_no_agreement() -> None:
    ones = torch.ones(3)
    outcome = residual_block.Outcome(ones, ones[0], ones[0], {}, {})
    for wrong in (float("nan"), float("inf")):
        other = residual_block.Outcome(ones * wrong, ones[0], ones[0], {}, {})
        relative = next(residual_block.differences(other, outcome)).relative
        assert not relative <= residual_block.tolerance(10)


def test_the_tolerance_grows_with_the_longest_sum() -> None:
    assert residual_block.tolerance(1) == residual_block.tolerance(residual_block.HIDDEN) == 8 * 16 * 2.0**-24
    assert residual_block.tolerance(4096) == 8 * 64 * 2.0**-24
