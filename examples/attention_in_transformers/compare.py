"""Two models of transformers train and write by their own attention and by portakernel's, and are compared.

    python examples/attention_in_transformers/compare.py
    python examples/attention_in_transformers/compare.py --device cuda --kernel triton.attention

README.md beside this file says what is compared. The exit status is 1 where a comparison fails.
"""

from __future__ import annotations

import copy
import math
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, Gemma2Config, GptOssConfig

import portakernel
from portakernel.integrations import transformers as integration

VOCABULARY = 96
# The window is shorter than the prompt, so that the layers that have one do hide keys.
WINDOW = 6
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "sliding_window": WINDOW,
    # Scores as large as a trained model's: with transformers' 0.02 the softcap would change nothing.
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,  # every sequence is written to its end
}


class Number(StrEnum):
    """The dtype of weights and activations."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


@dataclass(frozen=True, slots=True)
class Bounds:
    """By how much the two may differ.

    ``logit``: the largest difference of what tokens are chosen by, over the largest of these numbers. ``loss``: the
    difference at any step, over the first step's loss; losses drift apart in training, because AdamW divides small
    gradients by their own size. ``gradient``: for each parameter the norm of the gradients' difference, over the
    gradient's norm; twice what rounding does to transformers' own gradients comes on top.
    """

    logit: float
    loss: float
    gradient: float


BOUNDS = {
    Number.FLOAT32: Bounds(logit=1e-4, loss=1e-4, gradient=1e-4),
    Number.BFLOAT16: Bounds(logit=3e-2, loss=2e-2, gradient=3e-2),
}


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is computed."""

    layers: int
    prompt: int
    tokens: int
    steps: int


# Triton's interpreter runs kernels line by line in NumPy, and gets a case that is just longer than the window.
SIZES, SMALLEST = Sizes(layers=2, prompt=16, tokens=16, steps=30), Sizes(layers=2, prompt=8, tokens=3, steps=1)


def configurations(layers: int) -> dict[str, Any]:
    """The two models; in both every other layer has the window."""
    return {
        "Gemma 2 (softcap)": Gemma2Config(
            **SHAPE, num_hidden_layers=layers, attn_logit_softcapping=5.0, query_pre_attn_scalar=32
        ),
        # Each token takes all experts: where it takes some of them, a rounding may decide which.
        "GPT-OSS (sinks)": GptOssConfig(
            **SHAPE, num_hidden_layers=layers, num_local_experts=2, num_experts_per_tok=2,
            experts_implementation="batched_mm", rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        ),
    }  # fmt: skip


def kernels_so_far() -> Counter[tuple[str, str]]:
    """The attention calls of this process by phase and kernel."""
    total = Counter[tuple[str, str]]()
    for row in portakernel.stats():
        if row.op == "attention":
            total[row.phase, row.kernel] += row.calls
    return total


class Watch:
    """Which kernels serve a model's calls: what ``portakernel.stats()`` counts while a layer's attention runs."""

    def __init__(self, model: Any) -> None:
        self.layers: list[Counter[tuple[str, str]]] = []
        self._first = kernels_so_far()
        self._refused_before = self._refused()
        for layer in model.model.layers:
            self._count(layer.self_attn)

    def _count(self, module: nn.Module) -> None:
        served = Counter[tuple[str, str]]()
        self.layers.append(served)
        module.register_forward_pre_hook(lambda *_: served.subtract(kernels_so_far()))
        module.register_forward_hook(lambda *_: served.update(kernels_so_far()))

    def backward(self) -> Counter[tuple[str, str]]:
        """The gradients' calls, all layers together: autograd runs them outside the layers."""
        total = kernels_so_far() - self._first
        return Counter({key: calls for key, calls in total.items() if key[0] == "backward"})

    def recorded(self) -> bool:
        """Whether no kernel is called for gradients, because those that trained are made of PyTorch's operators."""
        calls = [call for served in self.layers for call in served.elements()]
        trained = {kernel for phase, kernel in calls if phase == "training"}
        chosen = [portakernel.explain("attention", phase="backward", kernel=kernel).chosen for kernel in trained]
        return bool(chosen) and all(kernel is not None and kernel.saves == "autograd" for kernel in chosen)

    def not_served(self, sizes: Sizes, kernel: str | None) -> list[str]:
        """The calls that portakernel, or the kernel that was asked for, did not serve."""
        refused = self._refused() - self._refused_before
        wrong = [f"{calls} calls were left to the model's own attention: {why}" for why, calls in refused.items()]
        expected = [
            (f"layer {at}", served, phase, calls)
            for at, served in enumerate(self.layers)
            for phase, calls in (("inference", sizes.tokens), ("training", sizes.steps))
        ]
        if not self.recorded():
            expected.append(("all layers", self.backward(), "backward", sizes.steps * len(self.layers)))
        for where, served, phase, calls in expected:
            found = sum(n for (of, by), n in served.items() if of == phase and kernel in (None, by))
            if found != calls:
                wrong.append(f"{where}, {phase}: {kernel or 'portakernel'} served {found} of {calls} calls")
        return wrong

    @staticmethod
    def _refused() -> Counter[str]:
        return Counter({row.refused: row.calls for row in integration.report() if row.refused})


@dataclass(frozen=True, slots=True)
class Training:
    """What came of some steps: each one's loss, and the first one's gradients."""

    losses: list[float]
    gradients: dict[str, Tensor]


def train(model: Any, ids: Tensor, steps: int) -> Training:
    """Teaches the model the sequences."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    trained = Training([], {})
    model.train()
    for _ in range(steps):
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        if not trained.losses:
            for name, parameter in model.named_parameters():
                trained.gradients[name] = (
                    torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
                )
        optimizer.step()
        trained.losses.append(loss.item())
    model.eval()
    return trained


def write(model: Any, prompt: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
    """The tokens that follow, and the logits that they were chosen by: the largest one's token each time."""
    found = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=tokens,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return found.sequences[:, prompt.shape[1] :], torch.stack(found.logits, 1).float()


@dataclass(frozen=True, slots=True)
class Apart:
    """The gradient that is furthest from what is right, measured by its bound."""

    parameter: str
    found: float
    bound: float


def gradients_apart(found: Training, own: Training, exact: Training, bound: float) -> Apart:
    """Compares gradients with those of the same weights in float32, from which transformers' own may be off too.

    In float32 these are transformers' own. In bfloat16 a gradient that is a small difference of large numbers is mostly
    rounding, whoever computes it.
    """
    apart = []
    for name, right in exact.gradients.items():
        size = right.norm().item()
        if size:
            errors = [((side.gradients[name].float() - right).norm() / size).item() for side in (found, own)]
            apart.append(Apart(name, errors[0], bound + 2 * errors[1]))
    return max(apart, key=lambda gradient: math.inf if math.isnan(gradient.found) else gradient.found / gradient.bound)


def compare(name: str, config: Any, device: str, number: Number, sizes: Sizes, kernel: str | None) -> list[str]:
    """Prints what the two models came to; what went wrong."""
    bound = BOUNDS[number]
    torch.manual_seed(0)
    own = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    own = own.to(device=device, dtype=getattr(torch, number))
    ours, exact = copy.deepcopy(own), copy.deepcopy(own).float()
    ids = torch.randint(2, VOCABULARY, (2, sizes.prompt + sizes.tokens)).to(device)
    prompt = ids[:, : sizes.prompt]

    with integration.enable(ours, ("attention",)):
        watch = Watch(ours)
        trained, trained_own = train(ours, ids, sizes.steps), train(own, ids, sizes.steps)
        gradient = gradients_apart(trained, trained_own, train(exact, ids, 1), bound.gradient)
        # From here on both have the same weights again. They have learned their text, so that each token that they
        # write stands well above the second best and no rounding chooses between them.
        ours.load_state_dict(own.state_dict())
        (written, logits), (written_own, logits_own) = (write(model, prompt, sizes.tokens) for model in (ours, own))

    # torch's maximum of numbers with a NaN among them is NaN, which is within no bound
    losses = (torch.tensor(trained.losses) - torch.tensor(trained_own.losses)).abs()
    loss = losses.max().item() / trained_own.losses[0]
    equal, learned = ((written_own == other).sum().item() for other in (written, ids[:, sizes.prompt :]))
    every = written.numel()
    from_to = f"{sizes.steps} steps, from {trained_own.losses[0]:.2f} to {trained_own.losses[-1]:.2f}"
    best = logits_own.topk(2).values
    margin = (best[..., 0] - best[..., 1]).min().item()
    logit = ((logits - logits_own).abs().max() / logits_own.abs().max()).item()
    rows = (
        ("greedy tokens", f"{equal} equal", f"all {every}", equal == every, f"{learned} as taught"),
        ("their logits", f"{logit:.1e} apart", f"{bound.logit:.1e}", logit <= bound.logit, f"margin {margin:.2g}"),
        ("losses", f"{loss:.1e} apart", f"{bound.loss:.1e}", loss <= bound.loss, from_to),
        ("gradients", f"{gradient.found:.1e} apart", f"{gradient.bound:.1e}", gradient.found <= gradient.bound,
         gradient.parameter.removeprefix("model.").removesuffix(".weight")),
    )  # fmt: skip
    print_kernels(name, watch, config.layer_types)
    table = Table(
        "compared", "found", "wanted", "", "", title=f"{name}, {number} on {device}: portakernel's beside eager"
    )
    for what, found, wanted, good, more in rows:
        table.add_row(what, found, wanted, "ok" if good else "[red]differs", more)
    Console().print(table)
    wrong = [f"{what}: {found}, wanted {wanted} ({more})" for what, found, wanted, good, more in rows if not good]
    return [f"{name}: {text}" for text in (*wrong, *watch.not_served(sizes, kernel))]


def print_kernels(name: str, watch: Watch, kinds: list[str]) -> None:
    """Prints which kernel served each layer, and how many calls."""
    table = Table("layer", "attention", "writing", "training", title=f"{name}: the calls of each kernel")
    for at, (served, kind) in enumerate(zip(watch.layers, kinds, strict=True)):
        table.add_row(
            str(at), kind.removesuffix("_attention"), *(of_phase(served, phase) for phase in ("inference", "training"))
        )
    gradients = "by PyTorch, of the kernel's operators" if watch.recorded() else of_phase(watch.backward(), "backward")
    table.add_row("all", "gradients", "", gradients)
    Console().print(table)


def of_phase(served: Counter[tuple[str, str]], phase: str) -> str:
    """The kernels that served a phase, and how often, in a cell of a table."""
    return ", ".join(f"{calls} {kernel}" for (of, kernel), calls in served.items() if of == phase and calls)


@contextmanager
def installed_interpreter() -> Iterator[None]:
    """The plugin beside this file, as if it had been installed: a folder on the path says that it is there."""
    with tempfile.TemporaryDirectory() as folder:
        info = Path(folder, "interpreted_triton-1.0.dist-info")
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: interpreted-triton\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[portakernel]\ninterpreted = interpreted_triton\n")
        sys.path += [folder, str(Path(__file__).parent)]
        yield


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
    dtype: Annotated[Number, typer.Option(help="dtype of weights and activations")] = Number.FLOAT32,
    kernel: Annotated[str | None, typer.Option(help="the only kernel that may serve attention")] = None,
    interpret: Annotated[bool, typer.Option(help="run triton.attention in Triton's interpreter, on the CPU")] = False,
    layers: Annotated[int | None, typer.Option(min=1, help="decoder layers")] = None,
    prompt: Annotated[int | None, typer.Option(min=1, help="tokens of the prompt")] = None,
    tokens: Annotated[int | None, typer.Option(min=1, help="tokens to write")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="training steps")] = None,
) -> None:
    """Compares both models; what is not given is smaller for the interpreter."""
    if interpret:
        if kernel is not None:
            text = f"--interpret runs triton.attention alone, and {kernel!r} was named; leave one of the two out"
            raise typer.BadParameter(text, param_hint="--kernel")
        if device not in (None, "cpu"):
            text = f"--interpret runs on the CPU, and {device!r} was named; leave one of the two out"
            raise typer.BadParameter(text, param_hint="--device")
        device, kernel = "cpu", "interpreted.attention"
    elif device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    check_device(device)
    given = {"layers": layers, "prompt": prompt, "tokens": tokens, "steps": steps}
    usual = SMALLEST if interpret else SIZES
    sizes = replace(usual, **{name: value for name, value in given.items() if value is not None})
    wrong: list[str] = []
    # The tables say which kernels serve; that a better one lacks softcap or sinks is no news here.
    warnings.simplefilter("ignore", portakernel.errors.FallbackWarning)
    with ExitStack() as stack:
        if interpret:
            stack.enter_context(installed_interpreter())
        if device == "cpu":
            torch.set_num_threads(1)  # to share such small tensors among threads takes longer than to compute
        if kernel is not None:
            try:
                stack.enter_context(portakernel.use(kernel))
            except portakernel.errors.UnknownNameError as error:
                raise typer.BadParameter(str(error), param_hint="--interpret" if interpret else "--kernel") from error
        for name, config in configurations(sizes.layers).items():
            try:
                wrong += compare(name, config, device, dtype, sizes, kernel)
            except portakernel.errors.NoKernelError as error:
                wrong.append(f"{name}: {error}")
    for text in wrong:
        print(text, file=sys.stderr)
    raise typer.Exit(bool(wrong))


if __name__ == "__main__":
    typer.run(main)
