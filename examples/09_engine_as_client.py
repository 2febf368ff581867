"""Hugging Face transformers as a client: a model of a random configuration writes on the ops, and alone.

Needs the extra `transformers`. Prints, on a CPU::

    attention         attn_implementation="portakernel", before: "sdpa"
    ...
    rms_norm          LlamaRMSNorm (5 times)
    ...
    served: attention 16 calls, rms_norm 40 calls, silu_and_mul 16 calls
    logits are at most ... apart, 2 x 8 greedy tokens are the same: True
    after disable: attention is sdpa
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from portakernel.integrations import transformers as integration

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
config = LlamaConfig(
    vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, initializer_range=0.2, pad_token_id=0, bos_token_id=1, eos_token_id=None,
)  # fmt: skip
model = LlamaForCausalLM(config).to(device).eval()
prompt = torch.randint(2, 256, (2, 12), device=device)


def written():
    """The tokens, and the logits that chose them."""
    given = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": 8, "do_sample": False}
    result = model.generate(prompt, **given, output_logits=True, return_dict_in_generate=True)
    return result.sequences, torch.stack(result.logits)


own_tokens, own_logits = written()
with integration.enable(model) as enabled:
    print(enabled)  # what is replaced, what is not, and why
    tokens, logits = written()
    rows = integration.report()  # what the ops served, what they left to the model, and why
assert not [row for row in rows if row.refused], rows
print("served:", ", ".join(f"{row.op} {row.calls} calls" for row in sorted(rows, key=lambda row: row.op)))
apart = (logits - own_logits).abs().max()
print(f"logits are at most {apart:.0e} apart, 2 x 8 greedy tokens are the same: {torch.equal(tokens, own_tokens)}")
print("after disable: attention is", model.config._attn_implementation)
