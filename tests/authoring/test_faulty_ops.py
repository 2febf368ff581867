"""Another distribution's op that goes wrong while its kernels are checked and timed: said in words, of it alone."""

from __future__ import annotations

import pytest

BAD_IMPORT = ("reference.py", "import torch\n", "import torch, nosuchthing\n")
TWO_RESULTS = ("reference.py", "return y.contiguous() if out is None else out.copy_(y)", "return y, y")
NO_BACKWARD = ("reference.py", "sums = grad_y.flip(-1)", "sums = grad_y.flop(-1)")
TOO_FLAT = ("contract.py", '{"N": 33}),', '{"N": 33}, given={"x": (1, 2)}),')
IMPORTING = "importing the reference portakernel_demo_scan.reference"
NO_FLOP = "AttributeError: 'Tensor' object has no attribute 'flop'"
INVALID = "RuntimeError: shape '[3, 5, 33]' is invalid for input of size 2"
BENCH = ("bench", "demo_scan", "--shape", "x=8x8", "--device", "cpu", "--seconds", "0.02", "--json")


@pytest.mark.parametrize(
    ("change", "aspect", "said"),
    [
        (
            BAD_IMPORT,
            "claim",
            f"{IMPORTING} raised ModuleNotFoundError: No module named 'nosuchthing' ({{reference}}:5)",
        ),
        (TWO_RESULTS, "claim", "the reference's forward returned 2 results; it has to return y"),
        (NO_BACKWARD, "backward", f"the reference's backward raised {NO_FLOP} ({{reference}}:28)"),
        (TOO_FLAT, "claim", f"drawing the contract's case 'rows' raised {INVALID}"),
    ],
    ids=["import", "results", "backward", "case"],
)
def test_check_says_what_of_the_op_is_at_fault(site, run, change, aspect, said):
    file, old, new = change
    folder = site(changes={file: (old, new)})
    found = run(
        "check", "--op", "demo_scan", "--plugin", "demo_scan", "--device", "cpu", "--budget", "0", "--json", status=1
    )
    failed = [r for r in found["results"] if r["status"] == "failed" and r["case"].startswith("demo_scan[rows, ")]
    text = said.format(reference=folder / "reference.py")
    assert {(r["aspect"], r["detail"]) for r in failed} == {(aspect, f"{text} (seed {found['seed']})")}
    assert len(failed) == 3  # of each dtype


def test_other_cases_and_other_ops_are_checked_all_the_same(site, run):
    site(changes={TOO_FLAT[0]: TOO_FLAT[1:]})
    asked = "check --plugin reference --op demo_scan --device cpu --budget 1s --json"
    found = run(*asked.split(), status=1)
    assert {r["case"] for r in found["results"] if r["aspect"] == "forward" and r["status"] == "passed"} >= {
        "demo_scan[one element, x=float32]",
        "demo_scan[sliced rows, x=float32]",
    }


def test_where_no_case_can_be_picked_the_kernel_has_one_failed_case(site, run):
    """Of kernels that are built, cases are picked by their tensors' forms: one that has none leaves no choice."""
    site(changes={"contract.py": ('"x": "transposed"', '"x": "split"')})
    text = "making tensors of the contract's case 'columns apart' raised ValueError: layout 'split' needs a tensor of "
    found = run(
        "check", "--op", "demo_scan", "--plugin", "inductor", "--device", "cpu", "--budget", "0", "--json", status=1
    )
    (result,) = found["results"]
    assert (result["case"], result["aspect"], result["status"]) == ("demo_scan[*]", "claim", "failed")
    assert result["detail"].startswith(text)
    asked = ["-p", "no:cacheprovider", "--portakernel-op=demo_scan", "--portakernel-plugin=inductor"]
    told = run("-c", f"import sys, pytest; sys.exit(pytest.main({asked}))", status=1)
    assert text in told
    assert "1 failed" in told


@pytest.mark.parametrize(
    ("change", "words", "said"),
    [
        (("contract.py", "cost=cost", "cost=lambda dims, itemsizes, values: 3"), (),
         "the contract of demo_scan is at fault: its cost returned int; return a portakernel.authoring.Cost"),
        (("contract.py", "cost=cost", "cost=lambda dims, itemsizes, values: dims['Q']"), (),
         "the contract of demo_scan is at fault: its cost raised KeyError: 'Q'"),
        (BAD_IMPORT, ("--backward", "--no-forward"),
         "the reference of demo_scan is at fault: ModuleNotFoundError: No module named 'nosuchthing'"),
    ],
)  # fmt: skip
def test_bench_fails_each_kernel_of_an_op_that_is_at_fault(site, run, change, words, said):
    file, old, new = change
    site(changes={file: (old, new)})
    (cell,) = run(*BENCH, *words, status=1)["cells"]
    assert {(kernel["kernel"], kernel["status"], kernel["reason"]) for kernel in cell["kernels"]} == {
        (f"{plugin}.demo_scan", "failed", said) for plugin in ("demo_scan", "inductor", "reference")
    }


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (BAD_IMPORT, "ModuleNotFoundError: No module named 'nosuchthing'"),
        (TWO_RESULTS, "reference.demo_scan returned 2 results, not 1"),
    ],
)
def test_bench_times_kernels_whose_reference_is_at_fault_and_fails(site, run, change, said):
    file, old, new = change
    site(changes={file: (old, new)})
    (cell,) = run(*BENCH, status=1)["cells"]
    assert (cell["checked_against"], cell["reference_failure"]) == ("demo_scan.demo_scan", said)
    statuses = {kernel["kernel"]: kernel["status"] for kernel in cell["kernels"]}
    assert statuses["demo_scan.demo_scan"] == "timed"
    assert statuses["reference.demo_scan"] in ("failed", "wrong")
