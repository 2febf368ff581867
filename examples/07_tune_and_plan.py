"""Calls are recorded, measured, and written into a plan that people review and a process follows to the letter.

Prints, on a CPU::

    recorded: rms_norm, silu_and_mul
    tune: ... new measurements, 0 kept from before, ... left, in ...
    plan lock: ... entries kept, ... added; lock: everything
    rms_norm by the plan: ..., plan.yaml:... uses it
    17 rows are not in it: plan.yaml is locked, and has no entry for such calls; the nearest is ...: M 17 is not 16
"""

import os
import subprocess
import sys
import tempfile

import torch

import portakernel
from portakernel import ops
from portakernel.errors import NoKernelError


def step(x, weight):
    return ops.silu_and_mul(ops.rms_norm(x, weight))


def command(*words):
    """The output of a command of portakernel, as in a shell; `tune` exits with 1 where its budget left calls."""
    ran = subprocess.run([sys.executable, "-m", "portakernel", *words], capture_output=True, text=True, check=False)
    assert ran.returncode in (0, words[0] == "tune"), ran.stderr
    return ran.stdout


with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    os.environ["PORTAKERNEL_TUNING_DIR"] = os.path.join(folder, "tuning")
    x, weight = torch.randn(16, 256), torch.ones(256)
    with portakernel.record("calls.yaml"):  # of a whole program: portakernel record -o calls.yaml -- python serve.py
        step(x, weight)
    with open("calls.yaml", encoding="utf-8") as recorded:
        print("recorded:", ", ".join(line.split("op: ")[1].split(",")[0] for line in recorded if "op: " in line))

    tuned = command("tune", "--calls", "calls.yaml", "--budget", "1s")  # each judged against float64, timed in turns
    print("tune:", next(line for line in tuned.splitlines() if "new measurements" in line))
    command("plan", "export", "-o", "plan.yaml", "--regime", "eager/cold")  # what was measured and decides
    locked = command("plan", "lock", "plan.yaml", "--calls", "calls.yaml")  # and by priorities what it leaves open
    print("plan lock:", locked.splitlines()[-2].removeprefix("plan.yaml: "))

    portakernel.load_plan("plan.yaml")  # PORTAKERNEL_PLAN=plan.yaml for a process
    decision = portakernel.explain("rms_norm", x, weight)
    print(f"rms_norm by the plan: {decision.chosen.name}, {decision.why}")
    try:
        step(torch.randn(17, 256), weight)
    except NoKernelError as error:
        refused = error.decision.candidate("torch.rms_norm_cpu").rejections[0].text
        print(f"17 rows are not in it: {refused}")
    os.chdir(os.path.dirname(folder))
