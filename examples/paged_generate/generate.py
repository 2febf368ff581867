"""A small Llama with random weights serves requests from a paged cache, and is compared with its own `generate`.

    python examples/paged_generate/generate.py
    python examples/paged_generate/generate.py --device cuda --graph

README.md beside this file says what is shown. The exit status is 1 where anything differs.
"""

from __future__ import annotations

import sys
import time
import warnings
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import takewhile
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table
from serving import Request, Running, Server
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

import portakernel

VOCABULARY = 512
HEAD = 64
QUERIES_A_KEY = 4  # heads of queries that share one of keys


class Number(StrEnum):
    """The dtype of weights, activations and cache."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


# By how much logits may differ, over the largest of them.
BOUNDS = {Number.FLOAT32: 1e-4, Number.BFLOAT16: 5e-2}


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is computed."""

    layers: int
    hidden: int
    requests: int
    tokens: int  # the longest answer
    batch: int
    page: int


SMALL = Sizes(layers=2, hidden=512, requests=7, tokens=12, batch=4, page=8)
LARGE = Sizes(layers=8, hidden=1024, requests=24, tokens=64, batch=16, page=16)


def made_model(sizes: Sizes, device: str, number: Number) -> Any:
    heads = max(QUERIES_A_KEY, sizes.hidden // HEAD)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=sizes.hidden, intermediate_size=2 * sizes.hidden, head_dim=HEAD,
        num_hidden_layers=sizes.layers, num_attention_heads=heads, num_key_value_heads=heads // QUERIES_A_KEY,
        max_position_embeddings=8192, pad_token_id=0, bos_token_id=1,
        eos_token_id=None,  # every request gets all tokens that it wants
        # Queries and keys of random weights then differ as a trained model's do: with transformers' 0.02 all keys would
        # weigh alike, and attention that mixes them up would not show.
        initializer_range=2.0 / sizes.hidden**0.5,
    )  # fmt: skip
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(config)
    return model.to(device=device, dtype=getattr(torch, number)).eval()


def drawn_requests(sizes: Sizes) -> list[Request]:
    """Prompts and answers of different lengths; the second begins as the first does, while that one still runs."""
    source = torch.Generator().manual_seed(1)

    def between(least: int, most: int) -> int:
        return int(torch.randint(least, most + 1, (), generator=source))

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(2, VOCABULARY, (count,), generator=source).tolist())

    prefix = tokens(2 * sizes.page + sizes.page // 2)
    requests = [Request(prefix + tokens(3), sizes.tokens, 0), Request(prefix + tokens(5), sizes.tokens, 1)]
    comes = 0
    for _ in range(sizes.requests - len(requests)):
        comes += between(0, 2)
        requests.append(Request(tokens(between(1, 5 * sizes.page)), between(1, sizes.tokens), comes))
    return requests


@torch.inference_mode()
def own_answers(model: Any, requests: list[Request]) -> list[tuple[list[int], Tensor]]:
    """What the model's own ``generate`` answers to each request alone: the tokens and the logits ``(wanted, V)``."""
    answers, shown = [], Console(stderr=True)
    for one in track(requests, "The model alone", console=shown, transient=True, disable=not shown.is_terminal):
        prompt = torch.tensor([one.prompt], device=model.device)
        found = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=one.wanted,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
        answers.append((found.sequences[0, len(one.prompt) :].tolist(), torch.cat(found.logits).float().cpu()))
    return answers


@dataclass(frozen=True, slots=True)
class Compared:
    """How far a served model was from its own answers; numbers of logits are over the largest logit.

    Tokens are compared up to the first one that differs, and logits up to there: what follows another token is another
    text. A token that differs is right only where two were nearly as likely.
    """

    tokens: int
    equal: int
    differing: int  # requests
    apart: float  # the largest difference of logits
    margin: float  # the least by which a token was ahead of the second best
    ahead: float  # the most by which the model's own token was ahead of one that differs

    @classmethod
    def of(cls, served: list[Running], own: list[tuple[list[int], Tensor]]) -> Compared:
        largest = torch.cat([logits for _, logits in own]).abs().max()
        equal = differing = 0
        apart, margin, ahead = torch.zeros(()), torch.tensor(torch.inf), torch.zeros(())
        for one, (tokens, logits) in zip(served, own, strict=True):
            same = len([*takewhile(lambda pair: pair[0] == pair[1], zip(one.written, tokens, strict=True))])
            equal += same
            # torch's maximum of numbers with a NaN among them is NaN, which is within no bound
            apart = torch.maximum(apart, (torch.stack(one.logits) - logits)[: same + 1].abs().max())
            best = logits.topk(2).values
            margin = torch.minimum(margin, (best[:, 0] - best[:, 1]).min())
            if same < len(tokens):
                differing += 1
                ahead = torch.maximum(ahead, best[same, 0] - logits[same, one.written[same]])
        apart, margin, ahead = apart / largest, margin / largest, ahead / largest
        count = sum(len(tokens) for tokens, _ in own)
        return cls(count, equal, differing, apart.item(), margin.item(), ahead.item())

    def wrong(self, bound: float) -> list[str]:
        """What is beyond the bound of logits, or, for a token that differs, beyond what two logits may be off."""
        found = []
        if not self.apart <= bound:
            found.append(f"logits are {self.apart:.1e} apart, wanted {bound:.1e}")
        if self.ahead > 2 * bound:
            text = f"the model's own was ahead by {self.ahead:.1e}, where {2 * bound:.1e} may be rounding"
            found.append(f"{self.differing} requests were given another token: {text}")
        return found


def print_decisions(server: Server) -> None:
    """Prints who served which op, and why."""
    table = Table("op", "steps", "kernel", "why", title="What the dispatcher decided")
    for (op, step), decision in sorted(server.decisions.items()):
        table.add_row(op, step, decision.chosen.name, decision.why)
    Console().print(table)
    ops = {op for op, _ in server.decisions}
    calls = [f"{row.kernel} {row.calls}" for row in portakernel.stats() if row.op in ops]
    print(f"calls, of which a replay makes none: {', '.join(calls)}\n")


def print_comparison(compared: Compared, number: Number, device: str) -> None:
    """Prints how far the tokens and logits are the model's own."""
    table = Table("compared", "found", "wanted", "", title=f"{number} on {device}: beside the model's own generate")
    ties = f"{compared.differing} requests differ" + f", by {compared.ahead:.1e}" * bool(compared.differing)
    table.add_row("greedy tokens", f"{compared.equal} equal", f"all {compared.tokens}", ties)
    bound = f"{BOUNDS[number]:.1e}"
    table.add_row("their logits", f"{compared.apart:.1e} apart", bound, f"margin {compared.margin:.1e}")
    Console().print(table)


def print_work(server: Server, tokens: int, seconds: float) -> None:
    """Prints what the timed run did: steps, pages and tokens a second."""
    pool, work = server.pool, server.work
    print(f"{tokens} tokens in {seconds:.2f} s: {tokens / seconds:.0f} tokens/s")
    print(f"{work.steps} steps, {work.replayed} of them replayed, of {work.most_running} requests at most")
    print(f"{pool.pages} pages of {pool.size} tokens, {pool.most_held} held at most, {work.shared} shared\n")


def check_device(device: str, graph: bool) -> None:
    """Refuses a device that torch cannot use here, or that has no graphs, before a model is made for it.

    Raises:
        typer.BadParameter: torch can put no tensor there, or --graph was given and it is no GPU.
    """
    try:
        torch.ones(1, device=device).item()  # a device that is only a name, as meta, has no values
    except (AssertionError, RuntimeError) as error:  # torch without CUDA asserts that it has it
        why = str(error).partition("\n")[0].partition(". ")[0].rstrip(".")
        text = f"torch cannot use {device!r} here ({why}); name a device that it can, as in --device cpu"
        raise typer.BadParameter(text, param_hint="--device") from error
    if graph and torch.device(device).type != "cuda":
        text = (
            f"a CUDA graph is captured on a GPU, and the device is {device!r}; leave --graph out, or name --device cuda"
        )
        raise typer.BadParameter(text, param_hint="--graph")


def served(server: Server, requests: list[Request], keep_logits: bool) -> tuple[list[Running], float]:
    """What came of the requests, and the seconds that it took; each step waits for its tokens."""
    began = time.perf_counter()
    found = server.run(requests, keep_logits)
    return found, time.perf_counter() - began


def main(
    device: Annotated[str | None, typer.Option(help="torch device [default: cuda where torch has it, or cpu]")] = None,
    dtype: Annotated[Number, typer.Option(help="dtype of weights, activations and cache")] = Number.FLOAT32,
    graph: Annotated[bool, typer.Option(help="capture the decoding step once and replay it; takes a GPU")] = False,
    layers: Annotated[int | None, typer.Option(min=1, help="decoder layers")] = None,
    hidden: Annotated[int | None, typer.Option(min=256, help="columns of the model, a multiple of 256")] = None,
    requests: Annotated[int | None, typer.Option(min=2, help="requests to serve")] = None,
    tokens: Annotated[int | None, typer.Option(min=2, help="tokens of the longest answer")] = None,
    batch: Annotated[int | None, typer.Option(min=2, help="requests that run at once")] = None,
    page: Annotated[int | None, typer.Option(min=1, help="tokens of a page")] = None,
) -> None:
    """Serves drawn requests twice: once to be compared with the model's own answers, once to be timed."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    check_device(device, graph)
    given = {"layers": layers, "hidden": hidden, "requests": requests, "tokens": tokens, "batch": batch, "page": page}
    usual = SMALL if torch.device(device).type == "cpu" else LARGE
    sizes = replace(usual, **{name: value for name, value in given.items() if value is not None})
    if sizes.hidden % (QUERIES_A_KEY * HEAD):
        text = (
            f"{sizes.hidden} is no multiple of {QUERIES_A_KEY * HEAD}: {QUERIES_A_KEY} heads of {HEAD} share their keys"
        )
        raise typer.BadParameter(text, param_hint="--hidden")
    # The table says who serves; that on a CPU it is the reference is no news here.
    warnings.simplefilter("ignore", portakernel.errors.ReferenceWarning)
    if device == "cpu":
        torch.set_num_threads(1)  # to share such small tensors among threads takes longer than to compute
    model, asked = made_model(sizes, device, dtype), drawn_requests(sizes)
    own = own_answers(model, asked)

    width = max(-(-(len(one.prompt) + one.wanted) // sizes.page) for one in asked)
    # half of what the largest batch could need: requests wait, and take pages that others have left
    pages = max(width + 2, sizes.batch * width // 2)
    server = Server(model, pages=pages, page=sizes.page, batch=sizes.batch, width=width, graph=graph)
    first, _ = served(server, asked, keep_logits=True)
    compared = Compared.of(first, own)
    again, seconds = served(server, asked, keep_logits=False)

    print_decisions(server)
    print_comparison(compared, dtype, device)
    print_work(server, compared.tokens, seconds)
    wrong = compared.wrong(BOUNDS[dtype])
    if [one.written for one in again] != [one.written for one in first]:
        wrong.append("the same requests, served again, were given other tokens")
    if not server.work.shared:
        wrong.append("no page was shared, though two requests begin alike")
    if server.pool.free != pages:
        wrong.append(f"{pages - server.pool.free} pages are held though every request has ended")
    if graph and not server.work.replayed:
        wrong.append("the captured step was never replayed")
    for text in wrong:
        print(text, file=sys.stderr)
    raise typer.Exit(bool(wrong))


if __name__ == "__main__":
    typer.run(main)
