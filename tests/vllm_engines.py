"""A program that runs vLLM's engine on tiny models of random weights, and prints what came of it as lines of JSON.

python vllm_engines.py FOLDER MODE:MODEL...        with MODE eager or compiled, MODEL a folder in FOLDER
"""

import json
import sys
from pathlib import Path

import torch

_SHAPES = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}
# Logits of untrained weights are nearly ties: these are so large that the best is one by far more than rounding.
_LARGER = 3.0
MODELS = ("llama", "qwen", "gemma")
PROMPTS = [[(7 * place * (prompt + 3) + prompt) % 500 + 1 for place in range(5 + 6 * prompt)] for prompt in range(3)]
TOKENS = 16


def make_models(folder: Path) -> None:
    """One folder of weights for each of ``MODELS``: Qwen's has norms of queries and keys, Gemma's norms offset by 1."""
    import transformers as hf

    kinds = {
        "llama": (hf.LlamaConfig, hf.LlamaForCausalLM, {}),
        "qwen": (hf.Qwen3Config, hf.Qwen3ForCausalLM, {}),
        "gemma": (hf.GemmaConfig, hf.GemmaForCausalLM, {"hidden_activation": "gelu_pytorch_tanh"}),
    }
    for name in MODELS:
        configuration, model_class, more = kinds[name]
        torch.manual_seed(7)
        model = model_class(configuration(**_SHAPES, **more))
        with torch.no_grad():
            for parameter_name, parameter in model.named_parameters():
                if "norm" in parameter_name:
                    parameter.add_(torch.randn_like(parameter) * 0.1)
                else:
                    parameter.mul_(_LARGER)
        model.save_pretrained(folder / name)


def make_float8_model(source: Path, folder: Path) -> None:
    """A model's weights in float8 with a scale for each row, as the format compressed-tensors has them."""
    from safetensors.torch import load_file, save_file

    kept: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            kept[name] = tensor
            continue
        scale = tensor.abs().amax(-1, keepdim=True) / torch.finfo(torch.float8_e4m3fn).max
        kept[name] = (tensor / scale).to(torch.float8_e4m3fn)
        kept[f"{name}_scale"] = scale
    folder.mkdir()
    save_file(kept, folder / "model.safetensors")
    shared = {"num_bits": 8, "type": "float", "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": {**shared, "strategy": "channel", "dynamic": False},
        "input_activations": {**shared, "strategy": "token", "dynamic": True},
    }
    configuration = json.loads((source / "config.json").read_text(encoding="utf-8"))
    configuration["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }
    (folder / "config.json").write_text(json.dumps(configuration), encoding="utf-8")


def _kernels_in_graphs() -> list[str]:
    """Fills with what the nodes of Inductor's graphs say of the ops and kernels that they are of."""
    from torch._inductor import config
    from torch._inductor.custom_graph_pass import CustomGraphPass

    names: list[str] = []

    class Look(CustomGraphPass):
        def __call__(self, graph: torch.fx.Graph) -> None:
            for node in graph.nodes:
                said = (node.meta.get("custom") or {}).get("portakernel")
                if said is not None and said not in names:
                    names.append(said)
                if said is None and "portakernel" in str(node.target):
                    names.append(f"undecided: {node.target}")

        def uuid(self) -> None:
            return None  # graphs come from no cache

    config.post_grad_custom_pre_pass = Look()
    return names


def run(folder: Path, mode: str, name: str) -> dict[str, object]:
    """One engine's greedy tokens, what became of its layers, and the kernels that its graphs name."""
    from vllm import LLM, SamplingParams, envs
    from vllm.model_executor.custom_op import op_registry_oot

    from portakernel.integrations import vllm as integration

    names = _kernels_in_graphs()
    engine = LLM(
        model=str(folder / name),
        skip_tokenizer_init=True,
        dtype="bfloat16" if name.endswith("float8") else "float32",
        enforce_eager=mode == "eager",
        max_model_len=256,
        max_num_seqs=4,
        disable_log_stats=True,
    )
    sampling = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, detokenize=False)
    done = engine.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], sampling, use_tqdm=False)
    apart = envs.VLLM_ENABLE_V1_MULTIPROCESSING
    reports = integration.worker_reports(engine) if apart else (integration.report(),)
    return {
        "mode": mode,
        "model": name,
        "tokens": [list(each.outputs[0].token_ids) for each in done],
        "replaced": sorted(op_registry_oot),
        "rows": [
            [row.layer, row.op, row.outcome, row.calls, row.traces, row.refused] for rows in reports for row in rows
        ],
        "graphs": names,
    }


def main() -> None:
    folder = Path(sys.argv[1])
    from portakernel.integrations.client import client
    from portakernel.integrations.ledger import Ledger

    for asked in sys.argv[2:]:
        client("vllm").ledger = Ledger()
        client("vllm")._made.clear()
        sys.stdout.write("RESULT " + json.dumps(run(folder, *asked.split(":"))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
