"""What the kit's calls through ``portakernel.ops`` do not hold against a kernel."""

from __future__ import annotations

import json

from portakernel.calling import caller
from portakernel.runtime import dispatcher
from portakernel_kit.conformance import runner


def test_sizes_that_look_like_another_layouts_are_no_fault_of_the_kernel(monkeypatch):
    monkeypatch.setattr(caller, "heads_come_first", lambda _: True)
    request = {
        "kernel": "torch.attention_math",
        "draw": 3,
        "dtypes": dict.fromkeys(("q", "k", "v"), "float32"),
        "dims": {"B": 2, "S": 1, "H": 4, "D": 8, "T": 2, "G": 2, "E": 8},
        "parameters": {"causal": False, "scale": None, "window": [-1, -1], "softcap": 0.0, "return_lse": False},
        "seed": 5,
    }
    results = [one for one in runner.again(dispatcher(), json.dumps(request)) if one.aspect == "autograd"]
    assert [one.status for one in results] == ["passed"]
