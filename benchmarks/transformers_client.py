"""A Llama of transformers, built at random, by its own operators and by portakernel's: prefill and greedy decoding.

    python benchmarks/transformers_client.py --device cuda:0 --output benchmarks/results

Both run in turns on one set of weights in one process, the prefill also under torch.compile; the numbers of their
logits are compared first.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import record
import torch
import typer
from rich.console import Console
from rich.table import Table
from transformers import LlamaConfig, LlamaForCausalLM

from portakernel.integrations import transformers as integration


def build(device: str, layers: int, hidden: int) -> LlamaForCausalLM:
    """A model in the shape of Llama 3, in bfloat16 on GPUs."""
    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=hidden,
        intermediate_size=hidden * 7 // 2,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 128,
        num_key_value_heads=max(hidden // 512, 1),
        max_position_embeddings=8192,
    )
    torch.manual_seed(0)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    return LlamaForCausalLM(config).to(device=device, dtype=dtype).eval()


def seconds(call: Callable[[], Any], device: str) -> float:
    """How long one call takes, the device's work included."""
    synchronise = torch.cuda.synchronize if device != "cpu" else lambda: None
    synchronise()
    begun = time.perf_counter()
    call()
    synchronise()
    return time.perf_counter() - begun


def main(
    device: Annotated[str, typer.Option(help="torch device of the model")] = "cpu",
    layers: Annotated[int, typer.Option(help="decoder layers")] = 4,
    hidden: Annotated[int, typer.Option(help="width; a multiple of 512")] = 512,
    prompt: Annotated[int, typer.Option(help="tokens of the prompt")] = 256,
    tokens: Annotated[int, typer.Option(help="tokens to write")] = 16,
    rounds: Annotated[int, typer.Option(help="how often each takes its turn")] = 5,
    output: Annotated[Path | None, typer.Option(help="folder for the JSON and Markdown results")] = None,
) -> None:
    """Measures, prints a table, and writes it where ``--output`` says."""
    model = build(device, layers, hidden)
    ids = torch.randint(0, 32000, (1, prompt), device=device)

    def prefill() -> Any:
        return model(ids, use_cache=True).logits

    compiled = torch.compile(model, dynamic=False)

    def prefill_compiled() -> Any:
        return compiled(ids, use_cache=False).logits

    def write() -> Any:
        return model.generate(
            ids, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=0, use_cache=True
        )

    ops: dict[str, tuple[str, ...] | None] = {
        "transformers' own (sdpa)": (),
        "attention": ("attention",),
        "rms_norm": ("rms_norm",),
        "rotary_embedding": ("rotary_embedding",),
        "silu_and_mul": ("silu_and_mul",),
        "all of portakernel's": None,
    }
    times: dict[tuple[str, str], list[float]] = {}
    logits: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        for turn in range(rounds + 1):
            for name, wanted in ops.items():
                enabled = None if wanted == () else integration.enable(model, wanted)
                calls = {"prefill": prefill, "writing": write}
                if wanted in ((), None):
                    calls["compiled"] = prefill_compiled
                for what, call in calls.items():
                    took = seconds(call, device)
                    if turn:  # the first is for caches and compilers
                        times.setdefault((name, what), []).append(took)
                logits.setdefault(name, prefill())
                if enabled is not None:
                    integration.disable()
    own = next(iter(ops))
    heads = (
        "operators",
        "prefill ms",
        "ratio",
        "writing tokens/s",
        "ratio",
        "compiled prefill ms",
        "ratio",
        "logits differ by",
    )
    table = Table(
        *heads,
        title="A Llama of transformers, operators by portakernel",
    )
    results = []
    for name in ops:
        first, rest = (statistics.median(times[name, what]) for what in ("prefill", "writing"))
        first_own, rest_own = (statistics.median(times[own, what]) for what in ("prefill", "writing"))
        difference = (logits[name].float() - logits[own].float()).abs().max() / logits[own].float().abs().max()
        row = {
            "operators": name,
            "prefill_ms": first * 1e3,
            "prefill_ratio": first_own / first,
            "tokens_per_s": tokens / rest,
            "tokens_ratio": rest_own / rest,
            "relative_difference": difference.item(),
        }
        if (name, "compiled") in times:
            row["compiled_prefill_ms"] = statistics.median(times[name, "compiled"]) * 1e3
            row["compiled_prefill_ratio"] = statistics.median(times[own, "compiled"]) * 1e3 / row["compiled_prefill_ms"]
        results.append(row)
        keys = ("prefill_ms", "prefill_ratio", "tokens_per_s", "tokens_ratio")
        keys += ("compiled_prefill_ms", "compiled_prefill_ratio")
        cells = [f"{row[key]:.2f}" if key in row else "" for key in keys]
        table.add_row(name, *cells, f"{row['relative_difference']:.1e}")
    Console().print(table)
    if output is not None:
        shape = {"layers": layers, "hidden": hidden, "prompt": prompt, "tokens": tokens}
        record.write(output, "transformers_client", device, {"model": shape, "rows": results}, table)


if __name__ == "__main__":
    typer.run(main)
