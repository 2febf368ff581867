"""A Llama of transformers, built at random, by its own operators and by portakernel's: prefill, decoding, training.

    python benchmarks/transformers_client.py --device cuda:0 --output benchmarks/results

Both run in turns on one set of weights in one process: prefill, greedy decoding, and a training step (loss and
gradients). Prefill and training also run under torch.compile, the prefill on GPUs with CUDA graphs too
(mode="reduce-overhead"). The numbers of their logits are compared first.
"""

from __future__ import annotations

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

    def compiled(mode: str | None) -> Callable[[], Any]:
        called = torch.compile(model, dynamic=False, mode=mode)
        return lambda: called(ids, use_cache=False).logits

    graphs = {"prefill compiled": compiled(None)}
    if device != "cpu":
        graphs["prefill in CUDA graphs"] = compiled("reduce-overhead")

    def training(function: Callable[..., Any]) -> Callable[[], Any]:
        parameters = list(model.parameters())

        def step() -> Any:
            with torch.enable_grad():
                loss = function(ids, labels=ids, use_cache=False).loss
                return torch.autograd.grad(loss, parameters)

        return step

    graphs["training compiled"] = training(torch.compile(model, dynamic=False))

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
                    calls |= {"training": training(model), **graphs}
                for what, call in calls.items():
                    call()  # the other side has left the allocator and the clocks in its own state
                    took = [seconds(call, device) for _ in range(1 if what == "writing" else 3)]
                    if turn:  # the first is for caches and compilers
                        times.setdefault((name, what), []).extend(took)
                logits.setdefault(name, prefill())
                if enabled is not None:
                    integration.disable()
    own = next(iter(ops))
    columns = {"prefill": "prefill ms", "writing": "writing tokens/s", "training": "training ms"} | {
        name: f"{name} ms" for name in graphs
    }
    heads = [head for what in columns.values() for head in (what, "ratio")]
    table = Table("operators", *heads, "logits differ by", title="A Llama of transformers, operators by portakernel")
    results = []
    for name in ops:
        difference = (logits[name].float() - logits[own].float()).abs().max() / logits[own].float().abs().max()
        row: dict[str, Any] = {"operators": name, "relative_difference": difference.item()}
        for what, head in columns.items():
            if (name, what) in times:
                took, took_own = (min(times[side, what]) for side in (name, own))  # as model_steps.py
                row[head] = tokens / took if what == "writing" else took * 1e3
                row[f"{head}, ratio"] = took_own / took
        results.append(row)
        cells = [
            f"{row[key]:.2f}" if key in row else "" for head in columns.values() for key in (head, f"{head}, ratio")
        ]
        table.add_row(name, *cells, f"{row['relative_difference']:.1e}")
    Console().print(table)
    if output is not None:
        shape = {"layers": layers, "hidden": hidden, "prompt": prompt, "tokens": tokens}
        record.write(output, "transformers_client", device, {"model": shape, "rows": results}, table)


if __name__ == "__main__":
    typer.run(main)
