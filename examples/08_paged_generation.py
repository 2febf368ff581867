"""Two prompts of unlike length are answered token by token from a paged cache: written once, read by every step.

What a small layer of random weights answers is compared with attention over the whole text, computed anew.
examples/paged_generate serves a whole model so, whose requests join and leave. Prints, on a CPU::

    request 0 in pages [5, 1], request 1 in pages [3, 6, 0, 2]
    6 steps: paged_attention by reference.paged_attention, 6 calls
    6 steps: write_kv_cache by reference.write_kv_cache, 6 calls
    request 0: 7 + 6 tokens, as without a cache: True
    request 1: 19 + 6 tokens, as without a cache: True
"""

import itertools

import torch

import portakernel
from portakernel import nn, ops

HEADS, KEY_HEADS, WIDTH, PAGE, STEPS = 4, 2, 16, 8, 6
PAGES = [[5, 1], [3, 6, 0, 2]]
torch.manual_seed(0)
torch.set_grad_enabled(False)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
embedding, norm = torch.nn.Embedding(50, 64, device=device), nn.RMSNorm(64, device=device)
layer = nn.Attention(64, HEADS, num_key_value_heads=KEY_HEADS, causal=True, batch_first=True, device=device)
cache = torch.full((8, 2, PAGE, KEY_HEADS, WIDTH), torch.nan, device=device)  # what nobody wrote would show
table = torch.tensor([pages + [-1] * (4 - len(pages)) for pages in PAGES], dtype=torch.int32, device=device)


def step(texts, computed):
    """The next token of each text; those behind its ``computed`` ones go into the cache and ask it, in one call."""
    new = [range(done, len(text)) for text, done in zip(texts, computed, strict=True)]
    slots = [pages[at // PAGE] * PAGE + at % PAGE for pages, these in zip(PAGES, new, strict=True) for at in these]
    starts = list(itertools.accumulate(map(len, new), initial=0))
    x = embedding(torch.tensor([text[at] for text, these in zip(texts, new, strict=True) for at in these]).to(device))
    heads = torch.nn.functional.linear(norm(x), layer.in_proj_weight, layer.in_proj_bias).unflatten(-1, (-1, WIDTH))
    q, k, v = heads.split([HEADS, KEY_HEADS, KEY_HEADS], 1)
    ops.write_kv_cache(k, v, cache[:, 0], cache[:, 1], torch.tensor(slots, device=device))
    lengths, queries = (torch.tensor(n, dtype=torch.int32, device=device) for n in (list(map(len, texts)), starts))
    out = ops.paged_attention(q, cache[:, 0], cache[:, 1], table, lengths, queries, max_seqlen_q=max(map(len, new)))
    last = layer.out_proj(out.flatten(1))[[end - 1 for end in starts[1:]]]
    return (last @ embedding.weight.T).argmax(-1).tolist()


prompts = [torch.randint(50, (length,)).tolist() for length in (7, 19)]
texts, computed = [list(prompt) for prompt in prompts], [0, 0]
for _ in range(STEPS):
    tokens = step(texts, computed)
    computed = [len(text) for text in texts]
    texts = [[*text, token] for text, token in zip(texts, tokens, strict=True)]
print(", ".join(f"request {at} in pages {pages}" for at, pages in enumerate(PAGES)))
for served in portakernel.stats():
    if served.op in ("paged_attention", "write_kv_cache"):
        print(f"{STEPS} steps: {served.op} by {served.kernel}, {served.calls} calls")
for at, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
    x = embedding(torch.tensor([text[:-1]], device=device))
    tokens = (layer(norm(x))[0] @ embedding.weight.T).argmax(-1)[len(prompt) - 1 :].tolist()
    print(f"request {at}: {len(prompt)} + {STEPS} tokens, as without a cache: {tokens == text[len(prompt) :]}")
