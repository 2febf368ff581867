"""Faults that SGLang logs, or that run without an error, are noticed."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("sglang", reason="make clients CLIENTS=sglang runs these")

from portakernel.errors import ClientWarning, UnknownNameError
from portakernel.integrations import sglang as integration
from portakernel.integrations import versions

pytestmark = [
    pytest.mark.filterwarnings("ignore::portakernel.errors.FallbackWarning"),
    pytest.mark.filterwarnings("ignore::portakernel.errors.ReferenceWarning"),
]

MakeLayer = Callable[[str, torch.dtype], tuple[Any, tuple[Any, ...]]]


def test_every_target_resolves_in_the_pinned_version() -> None:
    from portakernel.integrations.sglang.hooks import TARGETS, resolved

    assert [f"{resolved(target).__module__}.{resolved(target).__name__}" for target in TARGETS] == [
        target.path for target in TARGETS
    ]


def test_every_target_has_its_hook_and_loses_it_again() -> None:
    from sglang.kernels.fused_op import BaseFusedOp

    from portakernel.integrations.sglang.hooks import TARGETS, resolved

    integration.enable()
    for target in TARGETS:
        assert vars(resolved(target))["forward"].__wrapped__ is BaseFusedOp.forward
    integration.disable()
    for target in TARGETS:
        assert resolved(target).forward is BaseFusedOp.forward


def test_a_target_that_was_renamed_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.layers import activation

    from portakernel.integrations.sglang.hooks import MissingHookError

    monkeypatch.delattr(activation, "GeluAndMul")
    with pytest.raises(MissingHookError) as raised:
        integration.enable()
    assert str(raised.value) == (
        "SGLang has no sglang.srt.layers.activation.GeluAndMul, which portakernel hooks for gelu_and_mul (module"
        " 'sglang.srt.layers.activation' has no attribute 'GeluAndMul'); install a tested version, or leave"
        " gelu_and_mul out of PORTAKERNEL_CLIENTS"
    )
    assert "forward" not in vars(activation.SiluAndMul)
    integration.enable(["silu_and_mul"])
    assert "forward" in vars(activation.SiluAndMul)


def test_a_forward_that_takes_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.layers.activation import SiluAndMul

    from portakernel.integrations.sglang.hooks import MissingHookError

    monkeypatch.setattr(SiluAndMul, "forward_native", lambda self, x, limit=None: x)
    with pytest.raises(MissingHookError) as raised:
        integration.enable(["silu_and_mul"])
    assert str(raised.value) == (
        "SGLang's sglang.srt.layers.activation.SiluAndMul takes (x, limit), not (x) for which portakernel's hook was"
        " written; install a tested version, or leave silu_and_mul out of PORTAKERNEL_CLIENTS"
    )


def test_a_hook_that_sglang_does_not_apply_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry

    from portakernel.integrations.sglang.hooks import MissingHookError

    apply = HookRegistry._apply_target

    def failing(target: str, hooks: list[Any]) -> None:
        if "SiluAndMul" in target:
            raise TypeError("cannot set attribute")  # which apply_hooks logs
        apply(target, hooks)

    monkeypatch.setattr(HookRegistry, "_apply_target", staticmethod(failing))
    with pytest.raises(MissingHookError) as raised:
        integration.enable(["rms_norm", "silu_and_mul"])
    assert str(raised.value) == (
        "SGLang did not put portakernel's hook on sglang.srt.layers.activation.SiluAndMul.forward: its log says why"
        " (Failed to apply hooks). Another plugin may have replaced the method; SGLANG_PLUGINS names those to load"
    )
    assert not HookRegistry._hooks
    assert not HookRegistry._patched


def test_another_plugin_s_hook_stays_beside_portakernel_s() -> None:
    from sglang.kernels.fused_op import BaseFusedOp
    from sglang.srt.layers.activation import SiluAndMul
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    seen: list[int] = []
    target = "sglang.srt.layers.activation.SiluAndMul.forward"
    HookRegistry.register(target, lambda result, *given: seen.append(1), HookType.AFTER)
    HookRegistry.apply_hooks()
    layer, x = SiluAndMul(), torch.randn(5, 64)
    integration.enable(["silu_and_mul"])
    try:
        layer(x)
        assert (len(seen), [row.outcome for row in integration.report()]) == (1, ["served"])
        integration.disable()
        layer(x)
        assert (len(seen), integration.report()[0].calls) == (2, 1)
    finally:
        integration.disable()
        HookRegistry.reset()
        del SiluAndMul.forward
    assert SiluAndMul.forward is BaseFusedOp.forward


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_another_epsilon_is_noticed_and_stays_sglang_s(
    dtype: torch.dtype, compiled: bool, make_layer: MakeLayer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from portakernel import ops
    from portakernel.integrations.sglang.norms import Norm

    def wrong(self: Any, module: Any, *arguments: Any) -> Any:
        del self
        return ops.rms_norm(arguments[0], module.weight.data, eps=4 * module.variance_epsilon)

    monkeypatch.setattr(Norm, "ours", wrong)
    integration.enable(["rms_norm"])
    layer, given = make_layer("RMSNorm", dtype)
    holder = nn.ModuleList([layer])
    run = torch.compile(holder[0], backend="eager", fullgraph=True) if compiled else layer
    with torch.no_grad(), pytest.warns(ClientWarning, match="sglang's RMSNorm computes for itself, portakernel stands"):
        result = run(*given)
    assert torch.equal(result, layer.forward_native(*given))
    rows = [row for row in integration.report() if row.layer == "RMSNorm"]
    assert {row.outcome for row in rows} == {"left to the client"}, rows
    assert all("ulp off on average" in row.refused for row in rows)


def a_step(*layers: nn.Module) -> Callable[..., Any]:
    """A model of these layers that ends as SGLang's do: what runs a step of it."""
    from sglang.srt.layers.logits_processor import LogitsProcessor

    last: Any = LogitsProcessor.__new__(LogitsProcessor)
    nn.Module.__init__(last)
    last.forward = lambda x: x
    model = nn.ModuleList([*layers, last])
    assert len(model) == len(layers) + 1

    def run(x: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            x = layer(x)
        result: torch.Tensor = last(x)
        return result

    return run


def test_a_subclass_that_the_hook_does_not_reach_is_warned_of_after_the_first_step() -> None:
    from sglang.srt.layers.layernorm import RMSNorm

    class ScaledRMSNorm(RMSNorm):  # type: ignore[misc, unused-ignore]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2.0 * self.forward_native(x)  # type: ignore[no-any-return]

    integration.enable(["rms_norm"])
    step = a_step(RMSNorm(64), ScaledRMSNorm(64))
    reason = (
        "1 made, no call reached them; ScaledRMSNorm has a forward of its own, which a hook on"
        " sglang.srt.layers.layernorm.RMSNorm.forward does not reach: leave rms_norm out of PORTAKERNEL_CLIENTS, or let"
        " it call super().forward"
    )
    with torch.no_grad(), pytest.warns(ClientWarning) as caught:
        step(torch.randn(5, 64))
    assert [str(each.message) for each in caught] == [f"sglang's ScaledRMSNorm is enabled and bypassed: {reason}"]
    assert {row.layer: row.outcome for row in integration.report() if row.layer != "GemmaRMSNorm"} == {
        "RMSNorm": "served",
        "ScaledRMSNorm": "bypassed",
    }
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        step(torch.randn(5, 64))


def test_a_subclass_that_calls_its_base_is_served() -> None:
    from sglang.srt.layers.layernorm import RMSNorm

    class ReshapingRMSNorm(RMSNorm):  # type: ignore[misc, unused-ignore]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.reshape(-1, x.shape[-1])).reshape(x.shape)  # type: ignore[no-any-return]

    integration.enable(["rms_norm"])
    step = a_step(ReshapingRMSNorm(64))
    x = torch.randn(2, 5, 64)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", ClientWarning)
        torch.testing.assert_close(step(x), RMSNorm(64).forward_native(x))
    assert ("ReshapingRMSNorm", "served", 1) in {(row.layer, row.outcome, row.calls) for row in integration.report()}


def test_a_model_that_calls_another_method_is_warned_of_after_the_first_step() -> None:
    from sglang.srt.layers.activation import SiluAndMul

    class Calling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act = SiluAndMul()

        def forward(self, x: torch.Tensor) -> Any:
            return self.act.forward_native(x)

    integration.enable(["silu_and_mul"])
    with pytest.warns(ClientWarning) as caught:
        a_step(Calling())(torch.randn(5, 64))
    assert [str(each.message) for each in caught] == [
        (
            "sglang's SiluAndMul is enabled and bypassed: 1 made, no call reached them; the model calls another method"
            " than forward, or another plugin replaced sglang.srt.layers.activation.SiluAndMul.forward: SGLANG_PLUGINS"
            " names those to load"
        )
    ]


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "version", lambda distribution: "0.5.24")
    with pytest.raises(integration.UnsupportedVersionError) as raised:
        integration.enable()
    assert str(raised.value) == (
        "portakernel.integrations.sglang was tested with sglang ==0.5.23; 0.5.24 is installed, whose extension points"
        " may differ. Install a tested version"
    )


def test_an_op_that_serves_no_layer_is_an_error() -> None:
    with pytest.raises(UnknownNameError, match="softmax"):
        integration.enable(["softmax"])


# A process of SGLang: what it does first is to load its plugins.
PROCESS = """
import sys, warnings
warnings.simplefilter("ignore")
import torch
for name in ("nms", "qnms"):  # as in conftest.py
    torch.library.define("torchvision::" + name, "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
import importlib.metadata as metadata
import sglang.srt.plugins as plugins

group = plugins.GENERAL_PLUGINS_GROUP
point = metadata.EntryPoint("portakernel", "portakernel.integrations.sglang_plugin:enable_by_environment", group)
plugins.entry_points = lambda group: [point] if group == plugins.GENERAL_PLUGINS_GROUP else []
{fault}
plugins.load_plugins()
from sglang.srt.layers.activation import GeluAndMul, SiluAndMul

print(*(name.__name__ for name in (GeluAndMul, SiluAndMul) if "forward" in vars(name)), "portakernel" in sys.modules)
"""


def sglang_process(clients: str | None, fault: str = "") -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PORTAKERNEL_CLIENTS"}
    if clients is not None:
        environment["PORTAKERNEL_CLIENTS"] = clients
    program = PROCESS.format(fault=fault)
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("clients", "hooked"),
    [
        (None, "True"),
        ("vllm:rms_norm", "True"),
        ("sglang:silu_and_mul", "SiluAndMul True"),
        ("sglang", "GeluAndMul SiluAndMul True"),
    ],
)
def test_the_plugin_hooks_what_the_environment_names_and_nothing_else(clients: str | None, hooked: str) -> None:
    run = sglang_process(clients)
    assert (run.returncode, run.stdout.strip()) == (0, hooked), run.stderr


@pytest.mark.parametrize(
    ("clients", "fault", "message"),
    [
        ("sglang:softmax", "", "PORTAKERNEL_CLIENTS: sglang has no layer that 'softmax' serves"),
        ("sglnag", "", "PORTAKERNEL_CLIENTS names the client 'sglnag'"),
        (
            "sglang",
            "import portakernel.integrations.versions as versions; versions.version = lambda name: '0.5.24'",
            "was tested with sglang ==0.5.23; 0.5.24 is installed",
        ),
        (
            "sglang",
            "import sglang.srt.layers.activation as activation; del activation.GeluAndMul",
            "SGLang has no sglang.srt.layers.activation.GeluAndMul",
        ),
        (
            "sglang",
            "sys.modules['portakernel.integrations.sglang.requirements'] = None",
            "ModuleNotFoundError: import of portakernel.integrations.sglang.requirements halted",
        ),
    ],
    ids=["unknown op", "unknown client", "other version", "renamed target", "import error"],
)
def test_the_plugin_ends_the_process_where_it_cannot_do_what_is_asked(clients: str, fault: str, message: str) -> None:
    run = sglang_process(clients, fault)
    assert (run.returncode, run.stdout) == (1, "")
    assert f"PORTAKERNEL_CLIENTS is {clients!r}, and portakernel cannot do that here: " in run.stderr
    assert message in run.stderr
