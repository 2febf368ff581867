"""One policy file for machines that differ: what it decides on each, asked before it is deployed.

Prints, on any machine::

    cpu:x86_64    rms_norm  torch.rms_norm_cpu  policy.yaml:3 prefers it
    cpu:x86_64    add       torch.add           policy.yaml:3 prefers it
    nvidia:sm_90  rms_norm  triton.rms_norm     policy.yaml:12 uses it
    nvidia:sm_90  add       torch.add           policy.yaml:3 prefers it
    amd:gfx942    rms_norm  triton.rms_norm     policy.yaml:15 prefers it
    amd:gfx942    add       hip.add             highest priority ...
    amd:gfx942    add       not triton.add      denied by policy.yaml:4
    policy.yaml:3: perfer: unknown key; did you mean 'prefer'?
    still in force: torch.rms_norm_cpu, policy.yaml:3 prefers it
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import portakernel
from portakernel.errors import PolicyFileError

POLICY = """\
schema_version: 1
reference: warn              # the slow reference may serve on accelerators, with a warning
prefer: torch                # everywhere, where nothing below says more
deny: [triton.add]
ops:
  rms_norm:
    require: deterministic   # only kernels that promise it
targets:
  nvidia:sm_90+:
    ops:
      rms_norm:
        use: triton.rms_norm # this one, or an error
      add: {reference: forbid}
  amd:
    prefer: [triton]
"""
CALL = {"dtype": "bfloat16", "shape": {"x": (64, 4096)}}

with tempfile.TemporaryDirectory() as folder:
    file = Path(folder, "policy.yaml")
    file.write_text(POLICY, encoding="utf-8")
    portakernel.load_policy(file)  # as PORTAKERNEL_POLICY=/etc/portakernel/policy.yaml does for a process
    for target in ("cpu:x86_64", "h100", "mi300x"):
        for op in ("rms_norm", "add"):
            decision = portakernel.explain(op, target=target, **CALL)
            print(f"{decision.target!s:<14}{op:<10}{decision.chosen.name:<20}{decision.why}")
    refused = decision.candidate("triton.add").rejections[0].text
    print(f"{decision.target!s:<14}{op:<10}{'not triton.add':<20}{refused}")
    file.write_text(POLICY.replace("prefer: torch", "perfer: torch"), encoding="utf-8")
    try:
        portakernel.load_policy(file)
    except PolicyFileError as error:  # a file of the wrong form is an error, and the old one stays
        print(str(error).rpartition("/")[2])
    decision = portakernel.explain("rms_norm", target="cpu:x86_64", **CALL)
    print(f"still in force: {decision.chosen.name}, {decision.why}")
