"""``portakernel explain OP --source`` prints what a repeated call runs, and generated code is seen elsewhere too."""

from __future__ import annotations

import gc
import inspect
import linecache
import traceback

import pytest
import torch

import portakernel
from portakernel.calling.fast.generated import MARK, define
from portakernel.contracts import own_contracts


@pytest.mark.parametrize("op", own_contracts())
def test_a_call_s_functions_are_shown_from_the_op_to_the_kernel(run, op):
    ran = run(f"explain {op} --source --json")
    steps = ran.json["source"]
    assert [steps[0]["name"], steps[-2]["name"]] == [f"portakernel.ops.{op}", "launch"]
    assert "decide" in [step["name"] for step in steps]
    assert steps[-1]["role"] == f"{ran.json['chosen']} itself"
    for step in steps:
        assert step["missing"] == ""
        assert step["source"].lstrip().startswith(("def ", "@"))
        assert (step["line"] >= 1, bool(step["file"])) == (True, True)
    compile(steps[0]["source"], "shown", "exec")
    assert f"return _slow({'(' + ', '.join(own_contracts()[op].names)}" in steps[0]["source"]


def test_people_read_it_under_what_each_function_is_there_for(run):
    ran = run("explain rms_norm --source")
    assert "portakernel.ops.rms_norm: the op: recognises the call's form" in ran.out
    assert "\n  <portakernel: ops.rms_norm" in ran.out
    assert "torch.rms_norm_cpu itself\n" in ran.out
    assert "\n  def rms_norm_cpu(\n" in ran.out


def test_for_training_and_backward_the_kernel_s_own_functions_of_that_phase_are_shown(run):
    training = run("explain layer_norm --source --json --phase training").json["source"]
    backward = run("explain layer_norm --source --json --phase backward").json["source"]
    assert "save=True" in training[-2]["source"]
    assert "needs=needs" in backward[-2]["source"]
    assert training[-1]["name"] != backward[-1]["name"]


def test_a_kernel_whose_library_is_not_here_says_so_in_its_place(run):
    ran = run("explain rms_norm --source --json --target nvidia:sm_90 --use liger.rms_norm --dtype bfloat16")
    assert ran.json["source"][-1]["missing"].startswith("needs liger_kernel ")


def test_it_is_about_one_call(run):
    ran = run("explain --all --source")
    assert ran.status == 2
    assert "--source is about one call: give one op, and one --target" in ran.err


def test_tracebacks_show_the_generated_line():
    with pytest.raises(portakernel.errors.ArgumentTypeError) as caught:
        portakernel.ops.add(torch.ones(3, dtype=torch.complex64), torch.ones(3, dtype=torch.complex64))
    frames = [frame for frame in traceback.extract_tb(caught.value.__traceback__) if frame.filename.startswith(MARK)]
    assert frames[0].name == "add"
    assert frames[0].line.startswith("return _slow((x, y,)")


def test_a_source_goes_with_its_functions():
    made = define("def twice(x):\n    return 2 * x\n", "twice", "a test", {})
    file = made.__code__.co_filename
    assert (made(2), inspect.getsource(made)) == (4, "def twice(x):\n    return 2 * x\n")
    linecache.checkcache()
    assert linecache.getline(file, 2) == "    return 2 * x\n"
    del made
    gc.collect()
    assert file not in linecache.cache


def test_bound_handles_do_not_pile_up_sources():
    x, weight = torch.ones(2, 8), torch.ones(8)
    for _ in range(3):
        portakernel.bind("rms_norm", x, weight)
    gc.collect()
    before = len(linecache.cache)
    for _ in range(5):
        portakernel.bind("rms_norm", x, weight)
    gc.collect()
    assert len(linecache.cache) == before
