"""What production asks of ops: sizes of models that are in use, how they are split over devices, and token counts.

``portakernel bench --drawn`` measures requests that are drawn from these lists. A draw depends on its seed and its
number alone, so that a longer run begins with the requests of a shorter one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Model:
    """Sizes of a transformer: widths of layers, heads of queries and of keys, the size of a head, and tokens known."""

    name: str
    hidden: int
    intermediate: int
    heads: int
    key_heads: int
    head: int
    vocabulary: int


# From the models' published configurations.
DECODERS: tuple[Model, ...] = (
    Model("Llama 3.2 1B", 2048, 8192, 32, 8, 64, 128256),
    Model("Llama 3.2 3B", 3072, 8192, 24, 8, 128, 128256),
    Model("Llama 3.1 8B", 4096, 14336, 32, 8, 128, 128256),
    Model("Llama 3.1 70B", 8192, 28672, 64, 8, 128, 128256),
    Model("Llama 3.1 405B", 16384, 53248, 128, 8, 128, 128256),
    Model("Llama 2 7B", 4096, 11008, 32, 32, 128, 32000),
    Model("Llama 2 13B", 5120, 13824, 40, 40, 128, 32000),
    Model("Mistral 7B", 4096, 14336, 32, 8, 128, 32768),
    Model("Mistral Nemo", 5120, 14336, 32, 8, 128, 131072),
    Model("Mistral Small 24B", 5120, 32768, 32, 8, 128, 131072),
    Model("Qwen2.5 0.5B", 896, 4864, 14, 2, 64, 151936),
    Model("Qwen2.5 1.5B", 1536, 8960, 12, 2, 128, 151936),
    Model("Qwen2.5 7B", 3584, 18944, 28, 4, 128, 152064),
    Model("Qwen2.5 32B", 5120, 27648, 40, 8, 128, 152064),
    Model("Qwen2.5 72B", 8192, 29568, 64, 8, 128, 152064),
    Model("Qwen3 4B", 2560, 9728, 32, 8, 128, 151936),
    Model("Qwen3 8B", 4096, 12288, 32, 8, 128, 151936),
    Model("Qwen3 30B-A3B, an expert", 2048, 768, 32, 4, 128, 151936),
    Model("Gemma 2 2B", 2304, 9216, 8, 4, 256, 256000),
    Model("Gemma 2 9B", 3584, 14336, 16, 8, 256, 256000),
    Model("Gemma 2 27B", 4608, 36864, 32, 16, 128, 256000),
    Model("Gemma 3 1B", 1152, 6912, 4, 1, 256, 262144),
    Model("Gemma 3 4B", 2560, 10240, 8, 4, 256, 262208),
    Model("Gemma 3 27B", 5376, 21504, 32, 16, 128, 262208),
    Model("Phi-3 mini", 3072, 8192, 32, 32, 96, 32064),
    Model("Phi-2", 2560, 10240, 32, 32, 80, 51200),
    Model("Phi-4", 5120, 17920, 40, 10, 128, 100352),
    Model("GPT-2", 768, 3072, 12, 12, 64, 50257),
    Model("GPT-2 XL", 1600, 6400, 25, 25, 64, 50257),
    Model("GPT-NeoX 20B", 6144, 24576, 64, 64, 96, 50432),
    Model("Falcon 7B", 4544, 18176, 71, 1, 64, 65024),
    Model("gpt-oss, an expert", 2880, 2880, 64, 8, 64, 201088),
    Model("DeepSeek-V3, an expert", 7168, 2048, 128, 128, 128, 129280),
)
# Whose tokens all see each other: text, images, sound.
ENCODERS: tuple[tuple[Model, tuple[int, ...]], ...] = (
    (Model("BERT base", 768, 3072, 12, 12, 64, 30522), (128, 384, 512)),
    (Model("BERT large", 1024, 4096, 16, 16, 64, 30522), (128, 384, 512)),
    (Model("ModernBERT base", 768, 1152, 12, 12, 64, 50368), (1024, 8192)),
    (Model("ViT-B/16", 768, 3072, 12, 12, 64, 1000), (197,)),
    (Model("ViT-L/14", 1024, 4096, 16, 16, 64, 1000), (257, 577)),
    (Model("CLIP ViT-H/14", 1280, 5120, 16, 16, 80, 1000), (257, 730)),
    (Model("DINOv2 ViT-L/14", 1024, 4096, 16, 16, 64, 1000), (257, 1370, 4097)),  # 224, 518 and 896 pixels
    (Model("SigLIP So400m", 1152, 4304, 16, 16, 72, 1000), (729, 1024)),
    (Model("Whisper large", 1280, 5120, 20, 20, 64, 51866), (1500,)),
    (Model("FLUX.1", 3072, 12288, 24, 24, 128, 1000), (1536, 4608)),
)
# Tables that nobody padded: LLaMA with a token for padding (Alpaca), GPT-2, RoBERTa, Whisper, and as many rows as
# Qwen3's tokenizer has tokens (Qwen3-Embedding).
UNPADDED = (32001, 50257, 50265, 51865, 151669)
# What images and texts are told apart into: two sides, digits, ImageNet, that with a class for none, ImageNet-21k.
CLASSES = (2, 10, 1000, 1001, 21841)
# Sizes of a head, which norms of queries and keys have rows of: SD 3.5's are of 64, Qwen3's and FLUX' of 128, Gemma 3's
# of 256; the others are those of models above.
HEADS = (64, 72, 80, 96, 128, 256)
# LoRA's; AdaLoRA spreads a budget of ranks over layers, and leaves any number.
RANKS = (4, 8, 8, 16, 16, 32, 64, 128, 5, 11)
# Tokens of a step: requests that decode, and prompts; some are no multiple of anything.
DECODING = (1, 1, 2, 3, 4, 7, 8, 16, 17, 32, 33, 48, 64, 96, 100, 128, 192, 256)
PROMPTS = (197, 257, 512, 577, 1000, 1024, 1500, 2047, 2048, 2049, 4096, 4097, 6000, 8192, 16384)
# Keys that a decoding request has.
CONTEXTS = (128, 500, 512, 1000, 1024, 2048, 3000, 4096, 8192, 10000, 16384, 32768, 65536)
# Experts that a router chooses from.
EXPERTS = (8, 16, 32, 60, 64, 72, 128, 160, 256, 384)
# Mixtures of experts: how wide tokens are, how wide an expert is, how many there are, and how many a token takes.
MIXTURES: tuple[tuple[str, int, int, int, int], ...] = (
    ("Mixtral 8x7B", 4096, 14336, 8, 2),
    ("Mixtral 8x22B", 6144, 16384, 8, 2),
    ("Phi-3.5 MoE", 4096, 6400, 16, 2),
    ("gpt-oss 20B", 2880, 2880, 32, 4),
    ("gpt-oss 120B", 2880, 2880, 128, 4),
    ("OLMoE", 2048, 1024, 64, 8),
    ("Qwen1.5 MoE A2.7B", 2048, 1408, 60, 4),
    ("Qwen3 30B-A3B", 2048, 768, 128, 8),
    ("Qwen3 235B-A22B", 4096, 1536, 128, 8),
    ("Qwen3 Next 80B-A3B", 2048, 512, 512, 10),
    ("Granite 3 3B-A800M", 1536, 512, 40, 8),
    ("DeepSeek-V2 Lite", 2048, 1408, 64, 6),
    ("DeepSeek-V2", 5120, 1536, 160, 6),
    ("DeepSeek-V3", 7168, 2048, 256, 8),
    ("Kimi K2", 7168, 2048, 384, 8),
    ("GLM-4.5 Air", 4096, 1408, 128, 8),
    ("Llama 4 Maverick", 5120, 8192, 128, 1),
)
# Devices that a layer is split over.
SPLITS = (1, 1, 1, 2, 4, 8)
# Tables of recommenders and of words (GloVe): rows, and what one is wide.
TABLES = (
    (400_000, 50),
    (400_000, 300),
    (1_000_000, 128),
    (1_000_000, 64),
    (200_000, 256),
    (4_000_000, 16),
    (50_000, 32),
    (100_000, 100),
)


@dataclass(slots=True)
class Production:
    """Draws sizes; each is one of a list, or, of tokens, sometimes any number between the least and the most."""

    random: Random
    model: Model = field(init=False)

    def __post_init__(self) -> None:
        self.model = self.one_of(DECODERS)

    def one_of(self, values: Sequence[T]) -> T:
        """One of them, each as likely."""
        return self.random.choice(values)

    def at_times(self, share: float) -> bool:
        """True in so large a share of draws."""
        return self.random.random() < share

    def between(self, least: int, most: int) -> int:
        """Any number from one to the other, small ones as likely as large ones."""
        return min(most, int(least * (most / least) ** self.random.random()))

    def tokens(self) -> int:
        """Tokens of a step: of requests that decode, of prompts, or any number."""
        kind = self.random.random()
        return self.one_of(DECODING) if kind < 0.4 else self.one_of(PROMPTS) if kind < 0.8 else self.between(1, 16384)

    def share(self, width: int) -> int:
        """What one of several devices has of a width that is split; all of it where it cannot be."""
        parts = self.one_of(SPLITS)
        return width // parts if width % parts == 0 else width

    def pruned(self, width: int) -> int:
        """What structured pruning leaves of a width (LLM-Pruner, FLAP): any number down to a half; mostly all of it."""
        return self.random.randint(width // 2, width) if self.at_times(0.15) else width

    def vocabulary(self) -> int:
        """Tokens known: the model's, mostly padded, or, one time in four, as many as there are."""
        return self.one_of(UNPADDED) if self.at_times(0.25) else self.model.vocabulary

    def heads(self) -> tuple[int, int]:
        """Heads of queries and of keys that one device has; keys that cannot be split are on each."""
        model = self.model
        parts = next(parts for parts in self.random.sample((1, 2, 4, 8), 4) if model.heads % parts == 0)
        return model.heads // parts, max(1, model.key_heads // parts) if model.key_heads > 1 else 1
