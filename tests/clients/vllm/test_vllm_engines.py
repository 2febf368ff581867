"""vLLM's engine with portakernel under it: the tokens of vLLM alone, by layers that ops serve, and loud where not."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from client_environment import require

require("vllm")

import vllm_engines  # noqa: E402 - after the skip
from vllm_engines import MODELS, PROMPTS, TOKENS, make_float8_model, make_models  # noqa: E402

PROGRAM = Path(vllm_engines.__file__)
LAYERS = "vllm"
ALL = tuple(f"{mode}:{model}" for mode in ("eager", "compiled") for model in MODELS)
SERVED = {
    "llama": {"RMSNorm", "RotaryEmbedding", "SiluAndMul", "Attention"},
    "qwen": {"RMSNorm", "RotaryEmbedding", "SiluAndMul", "Attention"},
    "gemma": {"GemmaRMSNorm", "RotaryEmbedding", "GeluAndMul", "Attention"},
}
Result = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models")
    make_models(made)
    return made


@pytest.fixture(scope="module")
def started(folder: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def start(*asked: str, clients: str = "", apart: bool = False, **more: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PORTAKERNEL_")}
        environment |= {
            "VLLM_ENABLE_V1_MULTIPROCESSING": str(int(apart)),
            "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CACHE_ROOT": str(folder / "cache"),
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            **({"PORTAKERNEL_CLIENTS": clients} if clients else {}),
            **more,
        }
        command = [sys.executable, str(PROGRAM), str(folder), *asked]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    return start


def _results(done: subprocess.CompletedProcess[str]) -> dict[str, Result]:
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    lines = [json.loads(line[len("RESULT ") :]) for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    return {f"{result['mode']}:{result['model']}": result for result in lines}


@pytest.fixture(scope="module")
def alone(started: Callable[..., subprocess.CompletedProcess[str]]) -> dict[str, Result]:
    return _results(started(*ALL))


@pytest.fixture(scope="module")
def served(started: Callable[..., subprocess.CompletedProcess[str]]) -> dict[str, Result]:
    return _results(started(*ALL, clients=LAYERS))


@pytest.fixture(scope="module")
def served_apart(started: Callable[..., subprocess.CompletedProcess[str]]) -> dict[str, Result]:
    return _results(started(*ALL, clients=LAYERS, apart=True))


def _by_layer(result: Result, outcome: str) -> dict[str, tuple[int, int]]:
    counted: dict[str, tuple[int, int]] = {}
    for layer, _, found, calls, traces, _ in result["rows"]:
        if found == outcome:
            before = counted.get(layer, (0, 0))
            counted[layer] = before[0] + calls, before[1] + traces
    return counted


def test_without_the_variable_no_class_of_vllm_is_replaced(alone: dict[str, Result]) -> None:
    assert set(alone) == set(ALL)
    assert all(result["replaced"] == [] and result["rows"] == [] for result in alone.values())
    assert not any(result["graphs"] for result in alone.values())


def test_greedy_tokens_are_no_ties(alone: dict[str, Result]) -> None:
    for model in MODELS:
        tokens = alone[f"eager:{model}"]["tokens"]
        assert [len(each) for each in tokens] == [TOKENS] * len(PROMPTS)
        assert tokens == alone[f"compiled:{model}"]["tokens"]
        assert all(len(set(each)) > 3 for each in tokens)


@pytest.mark.parametrize("asked", ALL)
@pytest.mark.parametrize("engine", ["served", "served_apart"])
def test_tokens_are_those_of_vllm_alone(
    engine: str, asked: str, alone: dict[str, Result], request: pytest.FixtureRequest
) -> None:
    assert request.getfixturevalue(engine)[asked]["tokens"] == alone[asked]["tokens"]


@pytest.mark.parametrize("asked", ALL)
@pytest.mark.parametrize("engine", ["served", "served_apart"])
def test_every_layer_of_the_model_is_served_and_none_bypassed(
    engine: str, asked: str, request: pytest.FixtureRequest
) -> None:
    result = request.getfixturevalue(engine)[asked]
    mode, model = asked.split(":")
    counted = _by_layer(result, "served")
    assert set(counted) == SERVED[model]
    for layer, (calls, traces) in counted.items():
        # attention is called by graphs, too
        called = mode == "eager" or layer == "Attention"
        assert (calls > 0, traces > 0) == (called, not called)
    assert not _by_layer(result, "bypassed")
    left = {layer for layer, (calls, traces) in _by_layer(result, "left to the client").items() if calls or traces}
    assert not left


@pytest.mark.parametrize("model", MODELS)
def test_compiled_graphs_name_the_kernels(model: str, served: dict[str, Result]) -> None:
    said = served[f"compiled:{model}"]["graphs"]
    named = dict(each.split(": ") for each in said)
    ops = {
        op for layer, op, outcome, _, traces, _ in served[f"compiled:{model}"]["rows"] if outcome == "served" and traces
    }
    assert set(named) == ops
    for op, kernel in named.items():
        assert kernel in (f"reference.{op}, inline", f"torch.{op}_cpu, call")
    assert not served[f"eager:{model}"]["graphs"]


def test_float8_linear_layers_are_served_in_an_engine(
    started: Callable[..., subprocess.CompletedProcess[str]], folder: Path
) -> None:
    make_float8_model(folder / "llama", folder / "llama-float8")
    (result,) = _results(started("eager:llama-float8", clients="vllm:quantize_fp8,scaled_mm")).values()
    served = _by_layer(result, "served")
    # four linear layers in each of two blocks
    assert served["FP8ScaledMMLinearKernel"][0] == served["QuantFP8"][0] > 0
    assert served["FP8ScaledMMLinearKernel"][0] % 8 == 0
    assert [len(each) for each in result["tokens"]] == [TOKENS] * len(PROMPTS)


def test_an_unknown_op_stops_the_engine(started: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = started("eager:llama", clients="vllm:rms_nrom")
    assert done.returncode != 0
    assert "PORTAKERNEL_CLIENTS: vllm has no layer that 'rms_nrom' serves; did you mean 'rms_norm'?" in done.stderr


def test_an_integration_that_cannot_be_imported_stops_the_engine(
    started: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    broken = "import sys; sys.modules['portakernel.integrations.vllm.classes'] = None"
    (tmp_path / "sitecustomize.py").write_text(broken, encoding="utf-8")
    done = started("eager:llama", clients=LAYERS, PYTHONPATH=str(tmp_path))
    assert done.returncode != 0
    assert "import of portakernel.integrations.vllm.classes halted" in done.stderr
