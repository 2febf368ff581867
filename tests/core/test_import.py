"""Importing portakernel, and asking about hardware that is not here, loads neither torch nor any plugin's kernels."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from importlib.metadata import version

import pytest

import portakernel
from portakernel.contracts import contracts

MODULES = {"errors", "masks", "metrics", "nn", "ops", "paging", "shadow"}

QUESTIONS = """\
import sys
import portakernel
assert "portakernel_plugins" not in sys.modules
def loaded():
    plugins = ("portakernel_plugins.torch", "portakernel_plugins.triton", "portakernel_backends")
    names = ("torch", "triton", "numpy", *plugins)
    return [name for name in names if name in sys.modules]
assert loaded() == [], ("import", loaded())
decision = portakernel.explain("rms_norm", target="amd:gfx942", dtype="bfloat16", shape={"x": (4096, 8192)})
assert decision.chosen.name == "triton.rms_norm", decision
assert {candidate.kernel.name for candidate in decision.candidates} >= {
    "triton.rms_norm", "torch.rms_norm", "torch.rms_norm_cpu", "reference.rms_norm"}
assert loaded() == [], ("explain", loaded())
assert portakernel.stats() == ()
assert {state.package.name for state in portakernel.plugins()} >= {"torch", "triton", "nvidia", "amd", "cpu"}
assert loaded() == [], ("plugins", loaded())
with portakernel.use("triton"):
    assert portakernel.explain("add", target="nvidia:sm_90").why == "context uses it"
portakernel.set_policy(prefer="torch.add")
assert portakernel.explain("add", target="nvidia:sm_90").chosen.name == "torch.add"
for wrong in ("portakernel.ops.rmsnorm", "portakernel.explain('ad', target='nvidia:sm_90')"):
    try:
        eval(wrong)
    except ValueError as error:
        assert "did you mean" in str(error), error
    else:
        sys.exit(f"{wrong} raised nothing")
assert loaded() == [], ("policy", loaded())
assert "multiprocessing" not in sys.modules
"""


def test_importing_and_asking_load_neither_torch_nor_triton_nor_a_kernel():
    done = subprocess.run([sys.executable, "-c", QUESTIONS], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_public_names_are_there():
    assert portakernel.__all__ == sorted(portakernel.__all__, key=lambda name: (not name.isupper(), name))
    assert [name for name in portakernel.__all__ if not hasattr(portakernel, name)] == []
    assert set(portakernel.__all__) <= set(dir(portakernel))


def test_no_module_shares_its_name_with_a_public_function():
    """Importing ``portakernel.policy`` would put the module where the function is looked for."""
    modules = {module.name for module in pkgutil.iter_modules(portakernel.__path__)}
    assert modules & set(portakernel.__all__) == MODULES  # the modules themselves
    assert [
        name
        for name in portakernel.__all__
        if name not in {*MODULES, "PLUGIN_API"} and not callable(getattr(portakernel, name))
    ] == []


def test_another_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"^module 'portakernel' has no attribute 'explian'$"):
        _ = portakernel.explian


def test_ops_lists_the_ops_and_offers_the_nearest_of_an_unknown_one():
    assert dir(portakernel.ops) == sorted(contracts())
    assert not hasattr(portakernel.ops, "__wrapped__")
    with pytest.raises(AttributeError, match=r"^unknown op 'rmsnorm'; did you mean 'rms_norm' or 'add_rms_norm'\?$"):
        _ = portakernel.ops.rmsnorm


def test_the_version_is_that_of_the_distribution():
    assert portakernel.__version__ == version("portakernel")
