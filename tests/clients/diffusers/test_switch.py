"""What ``enable`` changes in diffusers, ``disable`` restores."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("diffusers", reason="make clients CLIENTS=diffusers runs these")

from diffusers import AttentionBackendName, attention_backend
from diffusers.models.attention_dispatch import _AttentionBackendRegistry as Registry
from diffusers.models.attention_processor import AttnProcessor2_0

from portakernel.errors import ArgumentTypeError
from portakernel.integrations import diffusers as integration

pytestmark = [
    pytest.mark.filterwarnings("ignore::portakernel.errors.FallbackWarning"),
    pytest.mark.filterwarnings("ignore::portakernel.errors.ReferenceWarning"),
]

MakeModel = Callable[[str], Any]
Counted = Callable[[], dict[str, tuple[int, int]]]


def state() -> tuple[Any, ...]:
    """All that diffusers keeps of its backends."""
    tables = Registry._backends, Registry._constraints, Registry._supported_arg_names
    names = list(AttentionBackendName), list(AttentionBackendName.__members__), sorted(vars(AttentionBackendName))
    by_value = list(AttentionBackendName._value2member_map_)
    return *(list(table) for table in tables), *names, by_value, Registry._active_backend


def processors(model: Any) -> list[Any]:
    return list(model.module.attn_processors.values())


def test_diffusers_is_as_it_was_after_disable(kind: str, make_model: MakeModel) -> None:
    before, model = state(), make_model(kind)
    was = [(type(each), getattr(each, "_attention_backend", "none")) for each in processors(model)]
    integration.enable(model.module)
    assert state() != before
    integration.disable()
    assert state() == before
    assert [(type(each), getattr(each, "_attention_backend", "none")) for each in processors(model)] == was
    with pytest.raises(ValueError, match="must be one of the following"):
        model.module.set_attention_backend("portakernel")


def test_what_a_user_set_by_diffusers_call_is_taken_back_too(make_model: MakeModel) -> None:
    integration.enable()
    model = make_model("Flux").at(torch.float32)
    model.module.set_attention_backend("portakernel")
    integration.disable()
    assert {each._attention_backend for each in processors(model)} == {None}
    assert Registry._active_backend == AttentionBackendName.NATIVE
    with torch.no_grad():
        model()


def test_a_backend_that_was_set_before_is_set_again(make_model: MakeModel) -> None:
    model = make_model("Wan")
    model.module.set_attention_backend("_native_math")
    integration.enable(model.module)
    integration.disable(model.module)
    assert {each._attention_backend for each in processors(model)} == {AttentionBackendName._NATIVE_MATH}
    assert Registry._active_backend == AttentionBackendName._NATIVE_MATH
    Registry.set_active_backend(AttentionBackendName.NATIVE)


def test_a_backend_that_was_set_since_stays(make_model: MakeModel) -> None:
    model = make_model("Wan")
    integration.enable(model.module)
    model.module.set_attention_backend("_native_math")
    integration.disable()
    assert {each._attention_backend for each in processors(model)} == {AttentionBackendName._NATIVE_MATH}
    assert Registry._active_backend == AttentionBackendName._NATIVE_MATH
    Registry.set_active_backend(AttentionBackendName.NATIVE)


def test_one_model_of_two_is_disabled(make_model: MakeModel, counted: Counted) -> None:
    first, second = make_model("Flux").at(torch.float32), make_model("Flux").at(torch.float32)
    integration.enable(first.module)
    integration.enable(second.module)
    integration.disable(first.module)
    assert {each._attention_backend for each in processors(first)} == {None}
    with torch.no_grad():
        second()
    assert counted() == {"": (2, 0)}


def test_the_block_of_a_with_statement_is_served_and_no_more(make_model: MakeModel, counted: Counted) -> None:
    before, model = state(), make_model("UNet").at(torch.float32)
    with torch.no_grad(), integration.enable(model.module):
        model()
    assert counted() == {"": (8, 0)}
    assert {type(each) for each in processors(model)} == {AttnProcessor2_0}
    assert Registry._active_backend == before[-1]


def test_enabling_again_changes_nothing(make_model: MakeModel) -> None:
    model = make_model("UNet")
    integration.enable(model.module)
    once, mine = state(), processors(model)
    assert str(integration.enable(model.module)).endswith("BackendAttnProcessor (8 times)")
    assert state() == once
    assert all(a is b for a, b in zip(processors(model), mine, strict=True))
    integration.disable()
    assert {type(each) for each in processors(model)} == {AttnProcessor2_0}


def test_diffusers_context_manager_takes_the_name(make_model: MakeModel, counted: Counted) -> None:
    integration.enable()
    model = make_model("Flux").at(torch.float32)
    with torch.no_grad(), attention_backend("portakernel"):
        model()
    assert Registry._active_backend == AttentionBackendName.NATIVE
    assert counted() == {"": (2, 0)}


def test_the_member_is_one_of_the_enum_s() -> None:
    integration.enable()
    member: Any = AttentionBackendName("portakernel")
    assert member is AttentionBackendName["PORTAKERNEL"] is list(AttentionBackendName)[-1]
    assert (member.name, member.value, repr(member)) == (
        "PORTAKERNEL",
        "portakernel",
        "<AttentionBackendName.PORTAKERNEL: 'portakernel'>",
    )
    assert copy.deepcopy(member) is pickle.loads(pickle.dumps(member)) is member


def test_a_unet_that_is_set_to_another_backend_is_its_own(make_model: MakeModel, counted: Counted) -> None:
    model = make_model("UNet").at(torch.float32)
    with torch.no_grad():
        native = model()
        integration.enable(model.module)
        model.module.reset_attention_backend()
        with attention_backend("_native_math"), pytest.warns(match="is set to the backend _native_math"):
            assert torch.equal(model(), native)
    assert [calls for reason, (calls, _) in counted().items() if not reason] == []


def test_what_no_backend_reaches_is_told(make_model: MakeModel) -> None:
    from diffusers.models.attention_processor import AttnProcessor

    model = make_model("UNet")
    model.module.set_attn_processor(AttnProcessor())
    assert str(integration.enable(model.module)).splitlines()[1:] == [
        (
            "attention         not in AttnProcessor (8 times): it calls torch's attention itself, and no backend of"
            " diffusers reaches it"
        )
    ]


def test_what_is_no_model_of_diffusers_is_refused() -> None:
    module: Any = torch.nn.Linear(2, 2)
    with pytest.raises(ArgumentTypeError) as raised:
        integration.enable(module)
    assert str(raised.value) == (
        "enable takes a model of diffusers (a ModelMixin), or nothing; Linear was given. Of a pipeline, give its"
        " transformer or its unet"
    )


def test_nothing_called_yet_is_reported() -> None:
    assert integration.report() == ()
    integration.enable()
    assert [str(row) for row in integration.report()] == [
        (
            "attention                                    0 calls     0 traces  left to the client: no model was called"
            ' since it was enabled; call set_attention_backend("portakernel")'
        )
    ]


PROGRAM = """
import torch
from portakernel.integrations import diffusers as integration

integration.enable()
from diffusers.models import attention_dispatch as dispatch

assert dispatch._AttentionBackendRegistry._active_backend.value == "portakernel"
heads = [torch.randn(1, 5, 2, 8) for _ in range(3)]
dispatch.dispatch_attention_fn(*heads)
print(*((row.outcome, row.calls) for row in integration.report()))
integration.disable()
assert dispatch._AttentionBackendRegistry._active_backend.value == "native"
"""


def test_the_environment_s_name_is_taken() -> None:
    environment = {**os.environ, "DIFFUSERS_ATTN_BACKEND": "portakernel", "HF_HUB_OFFLINE": "1"}
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stdout) == (0, "('served', 1)\n"), run.stderr
