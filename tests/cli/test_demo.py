"""``portakernel demo``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest
import torch

import portakernel
from portakernel import runtime
from portakernel_kit.demo import decoder
from portakernel_kit.demo import run as demo_run
from portakernel_kit.demo.command import MOST_BYTES
from portakernel_kit.demo.decoder_ops import NAMES

pytestmark = pytest.mark.usefixtures("small_model")


@pytest.fixture(autouse=True)
def _nothing_was_called_before() -> None:
    """A demo reports its process's calls, and this process ran other tests."""
    for caller in runtime.callers_so_far():
        caller.table.clear()


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text("The reasons are the product.\n" * 4, encoding="utf-8")
    return file


def test_json_form_key_by_key_and_both_sides_agree(run: Callable, text: Path) -> None:
    ran = run("demo", str(text), "--device", "cpu", "--steps", "8", "--precision", "fp8", "--json")
    data = ran.json
    assert ran.status == 0
    assert list(data) == [
        "agrees", "file", "bytes", "truncated", "device", "dtype", "fault", "losses", "prompts",
        "texts_before_training", "texts", "words", "tokens_per_s", "differences", "fp8", "prefer", "left_out",
        "decisions", "elsewhere", "stats",
    ]  # fmt: skip
    assert data["agrees"] is True
    assert (data["file"], data["bytes"], data["truncated"]) == (str(text), 116, False)
    assert list(data["device"]) == ["target", "name", "torch_device"]
    losses = data["losses"]
    assert losses["portakernel"] == pytest.approx(losses["torch"], rel=1e-4)
    assert losses["portakernel"][-1] < losses["portakernel"][0]
    assert all(d["within"] == (d["relative"] <= d["tolerance"]) for d in data["differences"])
    compared = {d["what"] for d in data["differences"]}
    assert {
        "logits", "loss of each byte", "gradient of 0.attention_norm", "losses of the first 8 steps",
        "probabilities while writing",
    } <= compared  # fmt: skip
    assert [len(text) for text in data["prompts"]] == [demo_run.PROMPT] * 4
    assert [data["texts"][side] for side in ("portakernel", "torch")] == [data["texts"]["torch"]] * 2
    low_precision = ("quantize_fp8", "scaled_mm")
    assert {*NAMES, *low_precision} <= {d["op"] for d in data["decisions"]}
    assert [(d["target"], d["op"]) for d in data["elsewhere"]] == [
        (target, op) for target in ("nvidia:sm_90", "amd:gfx942") for op in (*NAMES, *low_precision)
    ]
    assert list(data["stats"][0]) == ["op", "phase", "target", "kernel", "calls", "fallback"]
    # every operator went through portakernel, forward and backward
    served = {(row["op"], row["phase"]) for row in data["stats"]}
    assert {(op, "training") for op in NAMES if op != "softmax"} <= served
    assert {(op, "inference") for op in NAMES} <= served
    # what FP8 costs: the loss moves, and not far
    fp8 = data["fp8"]
    assert fp8["loss"] != fp8["float32_loss"]
    assert fp8["loss"] == pytest.approx(fp8["float32_loss"], rel=0.05)
    assert 0.5 < fp8["same_choice"] <= 1


@pytest.mark.parametrize("op", NAMES)
def test_one_wrong_element_is_found(run: Callable, text: Path, op: str) -> None:
    ran = run("demo", str(text), "--device", "cpu", "--steps", "2", "--fault", op)
    assert ran.status == 1
    assert "TOO LARGE" in ran.out
    last = (
        f"portakernel and plain torch DISAGREE, as --fault {op} asked: the difference is more than rounding explains."
    )
    assert ran.out.splitlines()[-1] == last


def test_people_read_decisions_differences_and_the_same_for_hardware_that_is_not_here(
    run: Callable, text: Path
) -> None:
    out = run("demo", str(text), "--device", "cpu", "--steps", "8", "--precision", "fp8").out
    assert out.startswith(f"A byte-level decoder in the shape of Llama over {text}: 116 bytes, float32\n")
    for part in (
        "\nWhich kernel served each op, and why\n",
        "\nWhat its 2 layers with ",
        "\nTraining: 8 steps of 256 bytes, on both sides in turn\n",
        "\n   step  loss, portakernel  loss, plain torch\n      1 ",
        "\nWhat it writes now (of 4 texts)\n  ",
        " words it wrote are the text's: so small a model learns it by heart.\n",
        "\nHow fast: bytes per second, by the median of steps taken in turn\n",
        "\nDifference from the same in plain torch, and what float32 rounding explains\n",
        "\nThe linear layers in FP8 (float8_e4m3fn, a scale for each row of weights and activations)\n",
        "\nThe same on an H200 (nvidia:sm_90), in bfloat16, asked from here\n",
        "\nThe same on an MI300X (amd:gfx942), in bfloat16, asked from here\n",
    ):
        assert part in out
    assert out.endswith("\nportakernel and plain torch agree.\n")


def test_without_a_file_the_text_is_the_package_s_own(
    run: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = run("demo --device cpu --steps 1 --json").json
    assert (data["file"], data["bytes"]) == (None, len((files("portakernel_kit.demo") / "text.txt").read_bytes()))
    assert data["prompts"][0] == "A model is a lon"


def test_the_model_learns_what_it_reads(run: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_run, "WRITTEN", 32)
    read = tmp_path / "page.txt"
    read.write_bytes((files("portakernel_kit.demo") / "text.txt").read_bytes()[:160])
    ran = run("demo", str(read), "--device", "cpu", "--steps", "100", "--json")
    data = ran.json
    losses = data["losses"]["portakernel"]
    assert ran.status == 0
    assert len(losses) == 100
    assert losses[0] > 5
    assert max(losses[-10:]) < 1
    # whole words of the text, where the untrained model wrote none
    words = data["words"]
    assert words["written"] > 10
    assert words["in_file"] > 0.8 * words["written"]
    page = read.read_text("utf-8")
    assert not any(text in page for text in data["texts_before_training"])


def test_no_op_of_the_demo_is_left_to_the_reference_on_the_cpu(run: Callable, text: Path) -> None:
    before = Counter[tuple[str, str, str]]()  # what other tests called in this process
    for row in portakernel.stats():
        before[row.op, row.kernel, row.phase] += row.calls
    rows = run("demo", str(text), "--device", "cpu", "--steps", "1", "--json").json["stats"]
    after = Counter[tuple[str, str, str]]()
    for row in rows:
        after[row["op"], row["kernel"], row["phase"]] += row["calls"]
    made = [dict(zip(("op", "kernel", "phase"), key, strict=True)) for key in after if after[key] > before[key]]
    served = [row for row in made if row["op"] in NAMES]
    assert {row["op"] for row in served} == set(NAMES)
    assert {row["phase"] for row in served} == {"training", "backward", "inference"}
    assert [row["kernel"] for row in served if row["kernel"].startswith("reference.")] == []


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


def test_an_unknown_precision_offers_those_that_there_are(run: Callable, text: Path) -> None:
    ran = run("demo", str(text), "--precision", "fp4")
    assert ran.status == 2
    assert ran.err == "portakernel: --precision: unknown precision 'fp4'; did you mean 'fp8'?\n"


def test_of_a_large_binary_file_the_beginning_is_read(run: Callable, tmp_path: Path) -> None:
    file = tmp_path / "binary"
    file.write_bytes(bytes(range(256)) * (MOST_BYTES // 256 + 1))
    ran = run("demo", str(file), "--device", "cpu", "--steps", "8")
    assert ran.status == 0
    assert f"over {file}: the first {MOST_BYTES} bytes, float32\n" in ran.out


def test_a_missing_or_infinite_value_is_no_agreement() -> None:
    ones = torch.ones(3)

    def outcome(logits: torch.Tensor) -> demo_run.Outcome:
        return demo_run.Outcome(logits, ones, {}, (1.0,), (b"a",), torch.ones(1, 1, 256), 1.0, 1.0)

    for wrong in (float("nan"), float("inf")):
        assert not next(demo_run.differences(outcome(ones * wrong), outcome(ones), 10)).within


def test_the_tolerance_grows_with_the_longest_sum() -> None:
    assert demo_run.rounding(1) == demo_run.rounding(decoder.HIDDEN) == 24 * 16 * 2.0**-24
    assert demo_run.rounding(4096) == 24 * 64 * 2.0**-24


# said once in a process, which the demo's own page tells too
@pytest.mark.filterwarnings("ignore::portakernel.errors.FallbackWarning")
def test_what_is_preferred_runs_where_it_can_and_elsewhere_the_reasons_are_told(run: Callable, text: Path) -> None:
    ran = run("demo", str(text), "--device", "cpu", "--steps", "8", "--prefer", "torch.softmax_cpu", "--json")
    data = ran.json
    assert (ran.status, data["prefer"]) == (0, ["torch.softmax_cpu"])
    left_out = {row["op"]: row["reasons"] for row in data["left_out"]}
    assert "softmax" not in left_out
    assert left_out["rms_norm"] == ["torch.softmax_cpu has no kernel for rms_norm"]
    out = run("demo", str(text), "--device", "cpu", "--steps", "8", "--prefer", "triton").out
    assert "\nWhere triton could not serve, and why\n" in out
    assert "triton.rms_norm: vendor: serves nvidia, amd, not cpu" in out


def test_a_preference_that_nothing_has_is_bad_input(run: Callable, text: Path) -> None:
    ran = run("demo", str(text), "--prefer", "trito")
    assert (ran.status, ran.out) == (2, "")
    assert "unknown kernel or plugin 'trito'; did you mean 'triton'" in ran.err
