"""PORTAKERNEL_CLIENTS: which engines are served, by which ops."""

from __future__ import annotations

import pytest

from portakernel.config import Config
from portakernel.errors import ConfigError
from portakernel.words.client_names import CLIENTS


def clients(text: str) -> dict[str, tuple[str, ...]]:
    return dict(Config.from_environment({"PORTAKERNEL_CLIENTS": text}).clients)


def test_unset_or_blank_serves_no_client() -> None:
    assert dict(Config.from_environment({}).clients) == clients(" ") == {}


@pytest.mark.parametrize(("text", "expected"), [
    ("vllm", {"vllm": CLIENTS["vllm"]}),
    ("vllm:rms_norm,silu_and_mul", {"vllm": ("rms_norm", "silu_and_mul")}),
    (" vllm : rms_norm ; sglang ", {"vllm": ("rms_norm",), "sglang": CLIENTS["sglang"]}),
])  # fmt: skip
def test_clients_are_named_with_their_ops_or_with_all(text: str, expected: dict[str, tuple[str, ...]]) -> None:
    assert clients(text) == expected


@pytest.mark.parametrize(("text", "message"), [
    ("vlm", "PORTAKERNEL_CLIENTS names the client 'vlm'; did you mean 'vllm'?"),
    ("diffusers", ("PORTAKERNEL_CLIENTS names the client 'diffusers'; diffusers loads no plugins:"
                   " call portakernel.integrations.diffusers.enable() in the program")),
    ("vllm:rmsnorm", "PORTAKERNEL_CLIENTS: vllm has no layer that 'rmsnorm' serves; did you mean 'rms_norm'?"),
    ("vllm:", ("PORTAKERNEL_CLIENTS is 'vllm:': 'vllm' has a colon and no op behind it; name some, such as"
               " vllm:rms_norm, or leave the colon out, which serves all")),
    *((f"vllm:{words}", (f"PORTAKERNEL_CLIENTS is 'vllm:{words}': 'vllm' has a comma without an op on each side; list"
                         " its ops with one comma between two, such as vllm:rms_norm,layer_norm"))
      for words in ("rms_norm,,silu_and_mul", "rms_norm,", ",rms_norm", "rms_norm, ,silu_and_mul", ",")),
    ("VLLM", "PORTAKERNEL_CLIENTS names the client 'VLLM'; did you mean 'vllm'?"),
    ("SGLang:rms_norm", "PORTAKERNEL_CLIENTS names the client 'SGLang'; did you mean 'sglang'?"),
    ("Diffusers", ("PORTAKERNEL_CLIENTS names the client 'Diffusers'; diffusers loads no plugins:"
                   " call portakernel.integrations.diffusers.enable() in the program")),
    ("vllm:RMS_NORM", "PORTAKERNEL_CLIENTS: vllm has no layer that 'RMS_NORM' serves; did you mean 'rms_norm'?"),
    ("vllm;vllm:rms_norm", "PORTAKERNEL_CLIENTS names 'vllm' twice; list its ops once, with commas between them"),
    (";", "PORTAKERNEL_CLIENTS is ';', which names no client; name some, or leave it unset"),
])  # fmt: skip
def test_what_names_no_client_or_op_is_an_error(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        clients(text)
    assert str(error.value) == message
