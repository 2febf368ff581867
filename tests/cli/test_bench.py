"""``portakernel bench``: what it prints and writes; the measuring has tests of its own."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from portakernel_kit.bench import suite
from portakernel_kit.bench.report import compare, new_file, read_report

SMALL = "--device cpu --seconds 0 --shape x=4x64"
MATPLOTLIB = "--plot draws with matplotlib, which cannot be imported"


def test_the_json_form_key_by_key(run: Callable) -> None:
    ran = run(f"bench rms_norm {SMALL} --dtype float32 --backward --json")
    assert ran.status == 0, ran.err
    found = ran.json
    assert list(found) == [
        "format", "circumstances", "options", "interrupted", "routing", "cells", "left_out", "launches", "comparison",
        "files",
    ]  # fmt: skip
    assert (found["format"], found["interrupted"], found["left_out"], found["comparison"]) == (1, False, [], None)
    assert found["options"] == {"seconds": 0.0, "seed": 0, "graph": False, "drawn": 0}
    assert found["circumstances"]["target"].startswith("cpu:")
    assert {"torch", "portakernel"} <= found["circumstances"]["versions"].keys()
    assert [(cell["op"], cell["case"], cell["phase"]) for cell in found["cells"]] == [
        ("rms_norm", "x 4×64", "forward"),
        ("rms_norm", "x 4×64", "backward"),
    ]
    cell = found["cells"][0]
    assert list(cell) == [
        "op", "case", "phase", "dtypes", "shapes", "values", "bytes", "flops", "bound", "copy_us", "chosen",
        "chosen_ratio", "best_us", "rival", "rival_ratio", "behind_own", "behind_foreign", "steps_us",
        "checked_against", "reference_failure", "kernels", "rejected",
    ]  # fmt: skip
    assert (cell["dtypes"], cell["shapes"]) == ({"x": "float32", "weight": "float32"}, {"x": [4, 64]})
    assert list(cell["kernels"][0]) == [
        "kernel", "status", "reason", "chosen", "latency_us", "p20_us", "p80_us", "rounds", "launches", "tb_per_s",
        "tflop_per_s", "copy_percent", "ratio_to_best",
    ]  # fmt: skip
    assert {row["kernel"] for row in cell["kernels"]} == {"torch.rms_norm_cpu", "reference.rms_norm"}
    assert found["routing"]["cells"] == 2


def test_a_table_for_each_request_marks_what_is_picked(run: Callable) -> None:
    ran = run(f"bench rms_norm {SMALL} --dtype float32 --dtype bfloat16 --shape x=2x32 --no-reference")
    assert ran.status == 0, ran.err
    lines = ran.out.splitlines()
    headings = [line for line in lines if line.startswith("rms_norm x ")]
    assert headings == ["rms_norm x 4×64 forward"] * 2 + ["rms_norm x 2×32 forward"] * 2
    assert lines[2] == "  x float32, weight float32; 0.002304 MB, 1.024e-06 GFLOP"
    assert re.fullmatch(r"  kernel +µs +p20–p80 +TB/s +% of copy +× best", lines[3])
    assert re.fullmatch(r"  torch\.rms_norm_cpu  picked +[\d.]+ +[\d.]+–[\d.]+ +\S+ +\d+ +1\.00", lines[4])
    assert re.fullmatch(r"  a plain copy +[\d.]+ +[\d.]+–[\d.]+ +\S+", lines[5])
    assert lines[-1] == "  geometric mean 1.000 of 4; worst 1.000, rms_norm x 4×64 forward"


def test_results_are_written_as_they_come_and_stay_whole_when_interrupted(
    run: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure, calls = suite.measure, []

    def second_is_interrupted(*given: object, **more: object) -> object:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return measure(*given, **more)

    monkeypatch.setattr(suite, "measure", second_is_interrupted)
    ran = run(f"bench rms_norm {SMALL} --shape x=2x32 --output {tmp_path}")
    assert ran.status == 130
    assert "Interrupted; that is what was measured until then." in ran.out
    (file,) = tmp_path.iterdir()
    found = json.loads(file.read_text(encoding="utf-8"))
    assert found["interrupted"] is True
    assert [cell["case"] for cell in found["cells"]] == ["x 4×64"]
    assert ran.out.endswith(f"Written\n  {file}\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_a_signal_ends_is_shown(run: Callable, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """A signal to a process and to its group arrives twice."""
    measure, calls = suite.measure, []

    def ends_in_the_second(*given: object, **more: object) -> object:
        calls.append(1)
        if len(calls) == 2:
            try:
                signal.raise_signal(number)
            finally:
                signal.raise_signal(number)
        return measure(*given, **more)

    monkeypatch.setattr(suite, "measure", ends_in_the_second)
    before = signal.getsignal(number)
    ran = run(f"bench rms_norm {SMALL} --shape x=2x32 --json")
    assert (ran.status, ran.json["interrupted"]) == (130, True)
    assert [cell["case"] for cell in ran.json["cells"]] == ["x 4×64"]
    assert signal.getsignal(number) is before


def test_ratios_to_an_earlier_result(run: Callable, tmp_path: Path) -> None:
    assert run(f"bench rms_norm {SMALL} --output {tmp_path}").status == 0
    (file,) = tmp_path.iterdir()
    ran = run(f"bench rms_norm {SMALL} --compare {file} --json")
    rows = ran.json["comparison"]
    before = {row["kernel"]: row["latency_us"] for row in read_report(file)["cells"][0]["kernels"]}
    assert {row["kernel"] for row in rows} == {"torch.rms_norm_cpu", "reference.rms_norm"}
    for row in rows:
        assert row["before_us"] == before[row["kernel"]]
        assert row["ratio"] == pytest.approx(row["latency_us"] / row["before_us"])
    shown = run(f"bench rms_norm {SMALL} --compare {file}").out
    assert re.search(r"  rms_norm x 4×64 forward  float32 +torch\.rms_norm_cpu +[\d.]+ +[\d.]+ +\d\.\d{3}\n", shown)
    other = run(f"bench rms_norm --device cpu --seconds 0 --shape x=3x5 --compare {file}").out
    assert other.endswith("Now over before\n  the two results have no measurement in common\n")
    assert compare([], []) == []


def test_launches_are_of_the_host(run: Callable) -> None:
    ran = run("bench rms_norm --device cpu --seconds 0 --launch --json")
    assert ran.status == 0
    (cell,) = ran.json["launches"]
    assert (cell["op"], cell["case"], ran.json["cells"]) == ("rms_norm", "4×256", [])
    assert list(cell["kernels"][0]) == ["kernel", "chosen", "reason", "host_us", "p20_us", "p80_us", "calls"]
    lines = run("bench rms_norm --device cpu --seconds 0 --launch").out.splitlines()
    assert lines[1:3] == [
        "rms_norm 4×256: the host's time for a call of the kernel",
        "  on a CPU a call is the whole computation",
    ]


def test_on_a_cpu_an_op_whose_sizes_are_all_for_accelerators_has_a_small_one(run: Callable) -> None:
    ran = run("bench softmax --device cpu --seconds 0 --quick --json")
    assert [cell["case"] for cell in ran.json["cells"]] == ["4×256"]
    assert [entry["case"] for entry in ran.json["left_out"]] == ["8192×32768"]


def test_a_kernel_that_is_wrong_ends_with_1(run: Callable, install: Callable) -> None:
    install(
        "acme",
        manifest="""
schema_version: 1
plugin: acme
summary: Wrong.
kernels:
  - {op: add, entry: "acme_for_cli_tests:add", targets: {cpu: any}, dtypes: {x: [float32], y: [x]}}
""",
        source="def add(x, y, *, out=None):\n    return x - y\n",
    )
    ran = run(f"bench add {SMALL} --kernel acme.add")
    assert ran.status == 1
    assert re.search(r"\n  acme\.add +wrong: sum differs from the reference's in row \d+, by \S+ of its size", ran.out)
    assert "  dispatch picks torch.add, which was not measured\n" in ran.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("bench rms_nor", "unknown op 'rms_nor'; did you mean 'rms_norm'"),
        ("bench rms_norm --kernel triton.rms", "unknown kernel 'triton.rms'; did you mean 'triton.rms_norm'"),
        ("bench rms_norm --plugin tritn", "unknown plugin 'tritn'; did you mean 'triton'?"),
        ("bench rms_norm --deny tritn", "command line: deny: unknown kernel or plugin 'tritn'"),
        ("bench rms_norm --device npu:9", "unknown device 'npu:9'"),
        ("bench rms_norm add --shape x=2x3", "--shape and --set are of one op; name it alone (2 are asked for)"),
        ("bench rms_norm --no-forward", "--no-forward leaves nothing to measure; add --backward"),
        ("bench rms_norm --plot", "--plot draws into the folder of the results; add --output DIR"),
        (
            "bench rms_norm --compare nowhere.json",
            "--compare nowhere.json: No such file or directory; give a file that",
        ),
    ],
)
def test_what_cannot_be_measured_is_told(run: Callable, arguments: str, message: str) -> None:
    ran = run(arguments)
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith(f"portakernel: {message}")


def test_a_file_that_is_no_result_is_told(run: Callable, tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    for text, problem in (("[]", "is no result of `portakernel bench` (format 1)"), ("{", "this is no JSON")):
        file.write_text(text, encoding="utf-8")
        ran = run(f"bench rms_norm {SMALL} --compare {file}")
        assert (ran.status, ran.out) == (2, "")
        assert problem in ran.err


def test_plots_without_matplotlib_say_how_to_get_it(
    run: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    ran = run(f"bench rms_norm {SMALL} --output {tmp_path} --plot")
    assert (ran.status, list(tmp_path.iterdir())) == (2, [])
    assert ran.err.startswith(f"portakernel: {MATPLOTLIB}")
    assert ran.err.endswith("pip install 'portakernel[plots]', or pip install matplotlib\n")


def test_plots_are_drawn_as_png_and_svg(run: Callable, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra `plots` is not installed")
    ran = run(f"bench rms_norm {SMALL} --output {tmp_path} --plot --json")
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".png", ".svg"]
    assert sorted(ran.json["files"]) == sorted(str(path) for path in tmp_path.iterdir())


def test_files_are_named_by_device_and_time_and_never_another_runs(tmp_path: Path) -> None:
    names = [new_file(tmp_path, "NVIDIA H200 (SXM)", "2026-11-22T03:26:13+00:00").name for _ in range(2)]
    assert names == [f"bench-nvidia-h200-sxm-2026-11-22t03-26-13{end}.json" for end in ("", "-2")]


def test_a_folder_that_cannot_be_written_says_why(run: Callable, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        ran = run(f"bench rms_norm {SMALL} --dtype float32 --output {folder} --json")
        assert ran.status == 2
        assert ran.json["error"]["message"].startswith(f"no results can be written to {folder}: ")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("", "--graph captures calls in a CUDA or HIP graph, and "),
        (" --backward", "--graph times replays of forward; leave out --backward and --launch"),
        (" --launch", "--graph times replays of forward; leave out --backward and --launch"),
    ],
)
def test_replays_are_of_forward_on_a_gpu(run, words, text):
    outcome = run(f"bench rms_norm --graph{words} --device cpu")
    assert outcome.status == 2
    assert text in " ".join(outcome.err.split())


def test_drawn_requests_are_the_seed_s_and_op_after_op_in_turn(run: Callable) -> None:
    asked = "bench rms_norm softmax --device cpu --seconds 0 --dtype float32 --drawn 3 --seed 4 --json"
    found, again = run(asked).json, run(asked).json
    assert [cell["op"] for cell in found["cells"]] == ["rms_norm", "softmax", "rms_norm"]
    shapes = [cell["shapes"] for cell in found["cells"]]
    assert shapes == [cell["shapes"] for cell in again["cells"]]
    assert shapes != [cell["shapes"] for cell in run(asked.replace("--seed 4", "--seed 5")).json["cells"]]
    assert found["left_out"] == []  # what a CPU has no time for is not drawn
    assert found["options"]["drawn"] == 3
    assert {"cells", "geometric_mean", "beyond_5_percent", "worst", "worst_case"} == found["routing"]["own"].keys()
    assert found["routing"]["foreign"]["cells"] == 3  # of torch, which its users have


@pytest.mark.parametrize("more", ["--shape x=4x64", "--set eps=1e-5", "--quick", "--launch"])
def test_drawn_sizes_are_no_others(run: Callable, more: str) -> None:
    ran = run(f"bench rms_norm --device cpu --drawn 2 {more}")
    assert ran.status == 2
    assert f"--drawn draws sizes; leave out {more.partition(' ')[0]}\n" in ran.err


def test_the_calls_of_a_file_are_measured_each_once(run: Callable, tmp_path: Path) -> None:
    file = tmp_path / "calls.yaml"
    entry = "{op: softmax, dtype: float32, shape: {x: [4, 64]}"
    file.write_text(
        f"calls:\n  - {entry}, count: 3}}\n  - {entry}}}\n  - {{op: add, dtype: float32, shape: {{x: [8], y: [8]}}}}\n"
    )
    found = run("bench", "softmax", "--calls", str(file), "--seconds", "0", "--device", "cpu", "--json").json
    assert [(cell["op"], cell["shapes"]) for cell in found["cells"]] == [("softmax", {"x": [4, 64]})]
    refused = run("bench", "--calls", str(file), "--quick")
    assert refused.status == 2
    assert "lists whole calls; leave out --shape, --dtype, --set, --launch, --quick and --drawn" in refused.err


def test_drawn_gradients_are_of_ops_that_have_backward_kernels(run: Callable) -> None:
    asked = "bench quantize_fp8 rms_norm add --device cpu --seconds 0 --dtype float32 --drawn 2 --backward --no-forward"
    found = run(f"{asked} --json").json
    assert [(cell["op"], cell["phase"]) for cell in found["cells"]] == [("rms_norm", "backward")] * 2
    assert found["left_out"] == []
    assert run(asked).out.count("not drawn: quantize_fp8, add have no backward kernels") == 1


def test_drawing_gradients_of_ops_without_backward_kernels_is_refused(run: Callable) -> None:
    ran = run("bench add --device cpu --drawn 2 --backward --no-forward")
    assert ran.status == 2
    assert "--no-forward: add has no backward kernels; name other ops, or leave it out" in " ".join(ran.err.split())
