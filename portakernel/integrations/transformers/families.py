"""The models that the integration was tested with: where their layers are and which formula each has.

To add one: enter it here, and a small configuration of it in tests/integrations/conftest.py. Its attention must pass
``sliding_window``, ``softcap`` and ``s_aux`` to the attention interface where it has them, and its masks must be made
by transformers' mask functions, without ``or_mask_function``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Norm:
    """A root mean square norm: its class, and whose formula it has (a forward of ``layers``)."""

    name: str
    formula: Literal["llama", "gpt_oss", "gemma"] = "llama"


@dataclass(frozen=True, slots=True)
class Mixture:
    """A mixture of experts: the classes of its router and experts, and whose ``formula`` these have."""

    router: str
    experts: str
    formula: Literal["mixtral", "qwen3_moe", "gpt_oss"]


@dataclass(frozen=True, slots=True)
class Family:
    """One ``modeling_*.py``: the model types that it is for, and its layers; what it has none of is empty."""

    model_types: tuple[str, ...]
    module: str
    norm: Norm
    gated_mlp: str = ""
    mixture: Mixture | None = None

    @property
    def modelling_module(self) -> str:
        """The full name of the module with the layers."""
        return f"transformers.models.{self.module}.modeling_{self.module}"


FAMILIES = (
    Family(("llama",), "llama", Norm("LlamaRMSNorm"), "LlamaMLP"),
    Family(("mistral",), "mistral", Norm("MistralRMSNorm"), "MistralMLP"),
    Family(("qwen3",), "qwen3", Norm("Qwen3RMSNorm"), "Qwen3MLP"),
    Family(("gemma",), "gemma", Norm("GemmaRMSNorm", "gemma"), "GemmaMLP"),
    Family(("gemma2",), "gemma2", Norm("Gemma2RMSNorm", "gemma"), "Gemma2MLP"),
    Family(
        ("gpt_oss",),
        "gpt_oss",
        Norm("GptOssRMSNorm", "gpt_oss"),
        mixture=Mixture("GptOssTopKRouter", "GptOssExperts", "gpt_oss"),
    ),
    Family(
        ("mixtral",),
        "mixtral",
        Norm("MixtralRMSNorm"),
        mixture=Mixture("MixtralTopKRouter", "MixtralExperts", "mixtral"),
    ),
    Family(
        ("qwen3_moe",),
        "qwen3_moe",
        Norm("Qwen3MoeRMSNorm"),
        "Qwen3MoeMLP",
        Mixture("Qwen3MoeTopKRouter", "Qwen3MoeExperts", "qwen3_moe"),
    ),
)

# A frozenset at module level is what torch.compile takes for a constant.
MODEL_TYPES = frozenset(model_type for family in FAMILIES for model_type in family.model_types)


def family_of(model_type: str) -> Family | None:
    """The family of a model type; None where it was not tested."""
    return next((family for family in FAMILIES if model_type in family.model_types), None)


def family_of_module(name: str) -> Family | None:
    """The family whose layers are in this module; None where it is another one."""
    return next((family for family in FAMILIES if family.modelling_module == name), None)
