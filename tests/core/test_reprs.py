"""What an interactive session prints of a public object says what it is, on one line."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch

import portakernel
from portakernel import ops
from portakernel.claims.capability import Capability, ReasonCode, Rejection
from portakernel.contracts import own_contracts
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.deciding.policies import make_layer
from portakernel.registry.plugin_manager import Broken, Package
from portakernel.runtime import dispatcher
from portakernel.text.spelling import spelled
from portakernel.words.target import Device, Target

X, WEIGHT = torch.ones(4, 8), torch.ones(8)


def served() -> object:
    ops.rms_norm(X, WEIGHT)
    return portakernel.stats()


# What each public function returns; what makes nothing says why.
RETURNED: Mapping[str, Any] = {
    "bind": lambda: portakernel.bind("rms_norm", X, WEIGHT),
    "explain": lambda: [
        portakernel.explain("rms_norm", X, WEIGHT),
        *(portakernel.explain(op, target="nvidia:sm_90") for op in own_contracts()),
        portakernel.explain("attention", target="apple:m4", dtype="float32", phase="training"),
    ],
    "patch": lambda: portakernel.patch(torch.nn.LayerNorm(4)),
    "plugins": portakernel.plugins,
    "policy": lambda: [portakernel.policy(deny=["torch"], reference="warn"), portakernel.policy(use=["x"] * 99)],
    "stats": served,
    "targets": portakernel.targets,
    "use": lambda: portakernel.use("torch"),
    "warmup": lambda: portakernel.warmup("rms_norm", X, WEIGHT, kernel="reference.rms_norm"),
    "Call": lambda: portakernel.Call("rms_norm", "bfloat16", {"x": (4096, 8192)}),
    "PLUGIN_API": lambda: portakernel.PLUGIN_API,
    "errors": None,  # modules
    "masks": None,
    "metrics": None,
    "nn": None,
    "ops": None,
    "paging": None,
    "shadow": None,
    "set_policy": None,  # these return nothing
    "load_plan": None,
    "load_policy": None,
    "load_tuning": None,
    "agree": None,
    "record": lambda: portakernel.record("calls.yaml"),
}


def objects(value: Any, seen: set[int]) -> Iterator[Any]:
    """The object, and those of portakernel that it leads to."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Mapping):
        inner = [*value.values()]
    elif isinstance(value, (tuple, list)):
        inner = [*value]
    elif dataclasses.is_dataclass(value):
        yield value
        inner = [getattr(value, field.name) for field in dataclasses.fields(value)]
    else:
        if type(value).__module__.startswith("portakernel") or callable(value):
            yield value
        inner = [*getattr(value, "__dict__", {}).values()] if callable(value) else []
    for one in inner:
        yield from objects(one, seen)


def test_every_public_name_is_looked_at() -> None:
    assert sorted(RETURNED) == sorted(portakernel.__all__)


@pytest.mark.parametrize("name", [name for name, make in RETURNED.items() if make is not None])
def test_what_public_functions_return_is_short_all_the_way_down(name: str) -> None:
    made = RETURNED[name]()
    for one in objects(made, set()):
        text = repr(one)
        assert len(text) <= 200, text
        assert "\n" not in text
        # a class that says nothing of what it is shows its place in memory and no more
        assert not re.fullmatch(r"<portakernel\S+ object at 0x[0-9a-f]+>", text), text


def test_the_policies_that_are_in_force_are_short() -> None:
    with portakernel.policy(deny=["triton"], require=["deterministic"]) as policy:
        assert repr(policy) == "<Policy: context: deny triton; require deterministic>"
        assert repr(policy.layers[0]) == "<Layer context: deny triton; require deterministic>"
    assert repr(dispatcher().policy()) == "<Policy: no wishes>"


def test_a_bound_handle_says_kernel_and_sizes() -> None:
    handle = portakernel.bind("rms_norm", X.bfloat16(), WEIGHT, kernel="reference.rms_norm")
    target = handle.decision.target
    shown = re.sub(r" at 0x[0-9a-f]+>$", ">", repr(handle))
    assert shown == (
        f"<function bound rms_norm [reference.rms_norm on {target}: x (4, 8) bfloat16, weight (8,) float32]>"
    )


def test_reprs_of_what_a_decision_consists_of() -> None:
    decision = portakernel.explain("add", target="nvidia:sm_90")
    assert re.fullmatch(r"<Decision: triton\.add of \d+ for add on nvidia:sm_90>", repr(decision))
    assert repr(decision.chosen) == "<Kernel triton.add of add for nvidia, amd>"
    assert repr(decision.candidate("hip.add")) == "<Candidate hip.add: rejected (vendor)>"
    assert repr(decision.request) == "<Request: add on nvidia:sm_90>"
    assert repr(Rejection(ReasonCode.VENDOR, "serves amd")) == "<Rejection vendor: serves amd>"
    assert repr(Device(Target("nvidia", "sm_90"), "H200", "cuda:0")) == "<Device cuda:0: H200, nvidia:sm_90>"
    package = Package("acme", "acme", "acme-kernels", "1.2", None)
    assert repr(package) == "<Package acme (acme-kernels 1.2)>"
    assert repr(Broken(package, "import", "a\nb")) == r"<Broken acme (acme-kernels 1.2) at import: a\nb>"


@pytest.mark.parametrize(
    ("op", "values", "told"),
    [
        ("gelu_and_mul", {"approximate": "tanh"}, "with x float32, approximate='tanh'"),
        ("linear_act", {"activation": "silu"}, "with x float32, weight float32, activation='silu'"),
        ("embedding_bag", {"mode": "mean"}, "with weight float32, mode='mean'"),
        ("rms_norm", {"weight_offset": 1.0}, "with x float32, weight float32, weight_offset=1.0"),
        ("gelu_and_mul", {"approximate": "none"}, "with x float32"),
    ],
)
def test_a_decision_and_the_error_where_none_serves_name_the_values_that_are_not_at_their_defaults(
    op: str, values: dict[str, object], told: str
) -> None:
    asked = f"{op} on nvidia:sm_90 {told}"
    decision = portakernel.explain(op, target="nvidia:sm_90", dtype="float32", **values)
    assert str(decision).splitlines()[0] == asked
    assert str(decision.error()).splitlines()[0] == f"no kernel for op {asked}"


def test_what_names_a_compiled_graph_tells_claims_apart_that_look_alike() -> None:
    chosen = portakernel.explain("add", target="nvidia:sm_90").chosen
    assert chosen is not None
    claim = chosen.variants[0][1]
    other = dataclasses.replace(claim, limits=(), prebuilt=not claim.prebuilt)
    assert repr(claim) == repr(other)
    assert spelled(claim) != spelled(other)


def test_a_graphs_name_changes_with_the_policy_and_comes_back() -> None:
    now = Dispatcher()
    now.refresh_trace_token()
    first = now.trace_token
    now.set_process_layer(make_layer("set_policy", deny="torch"))
    second = now.trace_token
    now.set_process_layer(make_layer("set_policy", deny="triton"))
    assert len({first, second, now.trace_token}) == 3
    now.set_process_layer(None)
    assert now.trace_token == first


def test_spelled_sets_do_not_depend_on_their_order() -> None:
    claims = [Capability({}, {}, features=frozenset(names)) for names in (["b", "a", "c"], ["c", "a", "b"])]
    assert spelled(claims[0]) == spelled(claims[1])
    assert "{'a', 'b', 'c'}" in spelled(claims[0])
