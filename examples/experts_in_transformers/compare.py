"""Two mixtures of experts of transformers write by their own routers and experts and by portakernel's ops.

    python examples/experts_in_transformers/compare.py
    python examples/experts_in_transformers/compare.py --device cuda

README.md beside this file says what is compared. The exit status is 1 where a comparison fails.
"""

from __future__ import annotations

import copy
import sys
import warnings
from collections import Counter
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import typer
from four_bits import dequantise, in_four_bits
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import AutoModelForCausalLM, MixtralConfig, Qwen3MoeConfig

import portakernel
from portakernel.integrations import transformers as integration

VOCABULARY = 96
OPS = ("moe_route", "moe_mlp")
SHOWN = ("int4_mm", "moe_mlp", "moe_route", "moe_sort", "pack_int4")
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,  # every sequence is written to its end
    "num_hidden_layers": 2,
    "experts_implementation": "eager",
}
# The largest difference, over the largest of the numbers compared.
BOUND = 1e-4


def configurations() -> dict[str, Any]:
    """The models: one renormalizes the weights of two experts, the other takes three experts' as they are."""
    return {
        "Mixtral": MixtralConfig(**SHAPE, intermediate_size=96, num_local_experts=8, num_experts_per_tok=2),
        "Qwen3-MoE": Qwen3MoeConfig(
            **SHAPE, intermediate_size=96, moe_intermediate_size=32, num_experts=16, num_experts_per_tok=3,
            norm_topk_prob=False,
        ),
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison."""

    what: str
    found: str
    wanted: str
    good: bool
    more: str


def teach(model: Any, ids: Tensor, steps: int) -> dict[str, Tensor]:
    """Teaches the model the sequences; the gradients of the first step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    first: dict[str, Tensor] = {}
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        first = first or {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
    model.eval()
    return first


def write(model: Any, prompt: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
    """The tokens that follow, and the logits that they were chosen by: the largest one's token each time."""
    found = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=tokens, do_sample=False, output_logits=True,
        return_dict_in_generate=True,
    )  # fmt: skip
    return found.sequences[:, prompt.shape[1] :], torch.stack(found.logits, 1).float()


def apart(found: Tensor, wanted: Tensor) -> float:
    """The largest difference, over the largest number of ``wanted``; NaN where there is one."""
    return ((found - wanted).abs().max() / wanted.abs().max()).item()


def near(what: str, differences: dict[str, float]) -> Row:
    """The farthest of some results, whose names it tells."""
    # torch's maximum of numbers with a NaN among them is NaN, which is within no bound
    place = int(torch.tensor(list(differences.values())).argmax())
    name, farthest = list(differences.items())[place]
    return Row(what, f"{farthest:.1e} apart", f"{BOUND:.0e}", farthest <= BOUND, name)


def written_alike(what: str, found: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor]) -> list[Row]:
    """Tokens and logits of two models, as ``write`` gives them."""
    equal, every = int((found[0] == wanted[0]).sum()), wanted[0].numel()
    best = wanted[1].topk(2).values
    margin = f"margin {(best[..., 0] - best[..., 1]).min().item():.2g}"
    tokens = Row(f"{what}: tokens", f"{equal} equal", f"all {every}", equal == every, margin)
    return [tokens, near(f"{what}: logits", {"": apart(found[1], wanted[1])})]


def gradients_alike(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> Row:
    """Gradients of all parameters that have one."""
    right = {name: gradient for name, gradient in wanted.items() if gradient.any()}
    return near("ops: gradients", {name: apart(found[name], gradient) for name, gradient in right.items()})


def layers_alike(four: Any, plain: Any, names: list[str], ids: Tensor) -> Row:
    """Each layer with four bits on what its counterpart is given, beside what that gives."""
    differences: dict[str, float] = {}

    def compared(name: str) -> Any:
        def hook(_: Any, given: tuple[Tensor, ...], wanted: Tensor) -> None:
            differences[name] = apart(four.model.get_submodule(name)(*given), wanted)

        return hook

    handles = [plain.model.get_submodule(name).register_forward_hook(compared(name)) for name in names]
    with torch.no_grad():
        plain(input_ids=ids, use_cache=False)
    for handle in handles:
        handle.remove()
    assert differences.keys() == set(names)
    return near(f"4 bits: {len(names)} layers", differences)


def served() -> Counter[tuple[str, str]]:
    """The calls of this process by op and kernel, gradients left out."""
    found = Counter[tuple[str, str]]()
    for row in portakernel.stats():
        if row.phase != "backward":
            found[row.op, row.kernel] += row.calls
    return found


def compare(name: str, config: Any, device: str, prompt: int, tokens: int, steps: int) -> list[str]:
    """Prints what the models came to; what went wrong."""
    torch.manual_seed(0)
    own = AutoModelForCausalLM.from_config(config).to(device)
    ours = copy.deepcopy(own)
    ids = torch.randint(2, VOCABULARY, (2, prompt + tokens)).to(device)
    before, refused_before = served(), refusals()
    # Taught a text, each token that they write stands well above the second best, and no rounding chooses.
    gradients = teach(own, ids, steps)
    with integration.enable(ours, OPS):
        rows = [gradients_alike(teach(ours, ids, 1), gradients)]
        ours.load_state_dict(own.state_dict())
        rows += written_alike("ops", write(ours, ids[:, :prompt], tokens), write(own, ids[:, :prompt], tokens))
    calls = served() - before
    rows += compare_four_bits(own, ids, prompt)
    print_rows(f"{name} on {device}: portakernel's beside the model's own", rows, served() - before)
    wrong = [f"{row.what}: {row.found}, wanted {row.wanted} ({row.more})" for row in rows if not row.good]
    wrong += [f"{n} calls were left to the model: {why}" for why, n in (refusals() - refused_before).items()]
    for op in OPS:
        found, wanted = sum(n for (of, _), n in calls.items() if of == op), config.num_hidden_layers * (1 + tokens)
        if found != wanted:
            wrong.append(f"{op}: portakernel served {found} of {wanted} calls")
    return [f"{name}: {text}" for text in wrong]


def compare_four_bits(own: Any, ids: Tensor, prompt: int) -> list[Row]:
    """Compares a copy of the model with weights of four bits with one that has what these stand for."""
    four, plain = copy.deepcopy(own), copy.deepcopy(own)
    names = in_four_bits(four)
    dequantise(plain, names)
    layers, tokens = layers_alike(four, plain, names, ids), ids.shape[1] - prompt
    with integration.enable(four, ("moe_route",)):
        written = write(four, ids[:, :prompt], tokens)
    return [layers, *written_alike("4 bits", written, write(plain, ids[:, :prompt], tokens))]


def print_rows(title: str, rows: list[Row], calls: Counter[tuple[str, str]]) -> None:
    """Prints the comparisons, and which kernels served."""
    table = Table("compared", "found", "wanted", "", "", title=title)
    for row in rows:
        table.add_row(row.what, row.found, row.wanted, "ok" if row.good else "[red]differs", row.more)
    told = [f"{op} by {kernel}: {n} calls" for (op, kernel), n in sorted(calls.items()) if op in SHOWN]
    Console().print(table, *told, "", sep="\n")


def refusals() -> Counter[str]:
    """The calls that the ops left to the model, by op and reason."""
    return Counter({f"{row.op}: {row.refused}": row.calls for row in integration.report() if row.refused})


def check_device(device: str) -> None:
    """Refuses a device that torch cannot use here, before models are made for it.

    Raises:
        typer.BadParameter: torch can put no tensor there.
    """
    try:
        torch.ones(1, device=device).item()  # a device that is only a name, as meta, has no values
    except (AssertionError, RuntimeError) as error:  # torch without CUDA asserts that it has it
        why = str(error).partition("\n")[0].partition(". ")[0].rstrip(".")
        text = f"torch cannot use {device!r} here ({why}); name a device that it can, as in --device cpu"
        raise typer.BadParameter(text, param_hint="--device") from error


def main(
    device: Annotated[str | None, typer.Option(help="torch device [default: cuda where torch has it, or cpu]")] = None,
    prompt: Annotated[int, typer.Option(min=1, help="tokens of the prompt")] = 12,
    tokens: Annotated[int, typer.Option(min=1, help="tokens to write")] = 12,
    steps: Annotated[int, typer.Option(min=1, help="steps in which they learn")] = 30,
) -> None:
    """Compares both models."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    check_device(device)
    if device == "cpu":
        torch.set_num_threads(1)  # to share such small tensors among threads takes longer than to compute
    # the table says which kernels serve
    warnings.simplefilter("ignore", portakernel.errors.FallbackWarning)
    warnings.simplefilter("ignore", portakernel.errors.ReferenceWarning)
    wrong = list[str]()
    for name, config in configurations().items():
        wrong += compare(name, config, device, prompt, tokens, steps)
    for text in wrong:
        print(text, file=sys.stderr)
    raise typer.Exit(bool(wrong))


if __name__ == "__main__":
    typer.run(main)
