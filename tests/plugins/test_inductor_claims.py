"""The Inductor plugin offers every op's reference, as its contract has it, without loading torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from portakernel import runtime
from portakernel.contracts import contract, own_contracts
from portakernel_plugins.inductor.claims import entries
from portakernel_plugins.inductor.exclusions import EXCLUDED

# of portakernel's own ops: another package may ship one more, which is known when its manifest was read
ENTRIES = {entry["op"]: entry for entry in entries() if entry["op"] in own_contracts()}
WHOLLY_EXCLUDED = {e.op for e in EXCLUDED if e.op and e.is_whole and not e.vendors}


def test_every_op_has_a_kernel_but_those_that_are_excluded():
    assert set(ENTRIES) == set(own_contracts()) - WHOLLY_EXCLUDED
    registry = runtime.dispatcher().registry
    kernels = {kernel.op for kernel in registry.kernels.values() if kernel.plugin == "inductor"}
    assert kernels == set(registry.ops) - WHOLLY_EXCLUDED


@pytest.mark.parametrize("exclusion", EXCLUDED, ids=lambda exclusion: exclusion.op or "every op")
def test_each_exclusion_is_of_something_that_exists_and_says_why(exclusion):
    assert exclusion.reason
    assert exclusion.op in ("", *own_contracts())


@pytest.mark.parametrize("op", ENTRIES)
def test_claims_are_the_contracts_less_the_exclusions(op):
    entry, described = ENTRIES[op], contract(op)
    for claim in entry.get("variants", [entry]):
        for vendor in claim["targets"]:
            ours = [e for e in EXCLUDED if e.op in ("", op) and (not e.vendors or vendor in e.vendors)]
            out = {dtype for e in ours for dtype in e.dtypes}
            for name in described.typed:
                accepted = described.accepted_dtypes(name, {})
                assert claim["dtypes"][name] == [d for d in accepted if d not in out and f"{name}.{d}" not in out]
            left_out = {feature for e in ours for feature in e.features}
            assert claim["features"] == [f.name for f in described.features if f.name not in left_out]
    assert all(entry["limits"][f"{name}.contiguous"] == {"in": [True]} for name in described.names)
    assert ("backward" in entry) == (described.gradient == "kernel")


def test_a_format_that_is_wrong_on_the_cpu_alone_is_claimed_elsewhere():
    formats = {v: c["formats"]["q"] for c in ENTRIES["quantize_fp8"]["variants"] for v in c["targets"]}
    assert "block_1x128" not in formats["cpu"]
    assert "block_1x128" in formats["nvidia"]


@pytest.mark.parametrize("module", ["torch", "triton", "numpy"])
def test_reading_the_claims_loads_nothing_heavy(module):
    code = (
        "import sys; from portakernel.registry.registry import Registry; kernels = Registry().kernels;"
        f" assert 'inductor.rms_norm' in kernels; sys.exit({module!r} in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_entry_exists_and_an_unknown_one_does_not():
    from portakernel.registry.kernel import load_entry
    from portakernel_plugins.inductor import entries as module

    for entry in ENTRIES.values():
        assert all(callable(load_entry(entry[key])) for key in ("entry", "build", "backward") if key in entry)
    with pytest.raises(AttributeError, match="has no attribute 'forward_nothing'"):
        module.forward_nothing  # noqa: B018
