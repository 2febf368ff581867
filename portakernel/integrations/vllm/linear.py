"""vLLM's fp8 linear layers by ``scaled_mm``: a kernel class of vLLM's list for its platform, before vLLM's own."""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

import torch
from torch import Tensor
from vllm import envs
from vllm.model_executor.kernels import linear as kernels
from vllm.model_executor.kernels.linear.scaled_mm import pytorch as torch_kernels
from vllm.platforms import current_platform

from portakernel import ops
from portakernel.integrations.client import client
from portakernel.integrations.served_layer import DTYPES
from portakernel.integrations.vllm.layer import NAME, VllmLayer

LAYER = "FP8ScaledMMLinearKernel"
# Block scales have a list of kernels of their own, into which vLLM registers nobody else's.
BLOCKS = "block scales: vLLM registers kernels for one scale a tensor or a row, and its own for blocks"
_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2)
# Why layers were left to vLLM's own kernels, and how many were.
left: Counter[str] = Counter()


class ScaledProduct(VllmLayer):
    """``apply_scaled_mm``: ``(a, b, scale_a, scale_b, bias)``, b as a linear layer keeps its weight, (N, K)."""

    def __init__(self) -> None:
        super().__init__(LAYER, "scaled_mm")

    def lacks(self, module: Any, *arguments: Any) -> str:
        """What the op's contract lacks for this call; empty where nothing."""
        a, b, scale_a, scale_b, bias = arguments
        if scale_a.numel() not in (1, a.shape[0]) or scale_b.numel() not in (1, b.shape[0]):
            return "scales that are not one for the tensor or one for each row"
        if scale_a.dtype != torch.float32 or scale_b.dtype != torch.float32:
            return "scales that are not float32"
        return "" if bias is None or bias.dtype in DTYPES else f"a bias of {bias.dtype}"

    def ours(self, module: Any, *arguments: Any) -> Any:
        """By ``scaled_mm``, with one scale for each tensor, or one for each row of both."""
        a, b, scale_a, scale_b, bias = arguments
        form: Literal["tensor", "row"] = "tensor"
        if scale_a.dim() or scale_b.dim():
            form = "row"
            scale_a, scale_b = (
                scale.expand(each.shape[0], 1).contiguous() for scale, each in ((scale_a, a), (scale_b, b))
            )
        return ops.scaled_mm(
            a, b, scale_a, scale_b, format_a=form, format_b=form, out_dtype=module.config.out_dtype, bias=bias
        )

    def own(self, module: Any, *arguments: Any) -> Any:
        """By vLLM's kernel of PyTorch's own product, which takes weights as they are."""
        a, b, scale_a, scale_b, bias = arguments
        both = scale_a.dim() == scale_b.dim() == 0
        own: Any = torch_kernels.PerTensorTorchFP8ScaledMMLinearKernel
        if not both:
            own = torch_kernels.ChannelWiseTorchFP8ScaledMMLinearKernel
            scale_a = scale_a.expand(a.shape[0], 1)
        return own.apply_scaled_mm(
            module,
            A=a,
            B=b.t(),
            out_dtype=module.config.out_dtype,
            As=scale_a,
            Bs=scale_b,
            bias=bias,
            output_shape=[a.shape[0], b.shape[0]],
        )

    def exact(self, module: Any, *arguments: Any) -> Any:
        """The formula in float64."""
        del module
        a, b, scale_a, scale_b, bias = arguments
        product = (a * scale_a) @ (b * scale_b).t()
        return product if bias is None else product + bias


SCALED_MM = ScaledProduct()


class PortakernelFP8ScaledMMLinearKernel(kernels.FP8ScaledMMLinearKernel):  # type: ignore[misc]  # vLLM is untyped here
    """vLLM's fp8 linear layer, its product by portakernel's ``scaled_mm``; vLLM quantises, by its ``QuantFP8``."""

    def __init__(self, c: Any, layer_param_names: Any) -> None:
        super().__init__(c, layer_param_names)
        self.portakernel_batch_invariant = False  # `is_supported` says so
        client(NAME).born(LAYER, self)

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]:
        """Whether the platform allows it; a reason where not."""
        del compute_capability
        return _answer("VLLM_BATCH_INVARIANT asks for a kernel of vLLM's" if envs.VLLM_BATCH_INVARIANT else "")

    @classmethod
    def can_implement(cls, c: Any) -> tuple[bool, str | None]:
        """Whether ``scaled_mm`` takes such a layer; a reason where not."""
        return _answer(_refused(c))

    def parameters(self, recurse: bool = True) -> tuple[Tensor, ...]:
        """None: the weights are the linear layer's."""
        del recurse
        return ()

    def buffers(self, recurse: bool = True) -> tuple[Tensor, ...]:
        """None, as above."""
        del recurse
        return ()

    def apply_scaled_mm(
        self,
        *,
        A: Tensor,  # noqa: N803 - vLLM's names
        B: Tensor,  # noqa: N803
        out_dtype: torch.dtype,
        As: Tensor,  # noqa: N803
        Bs: Tensor,  # noqa: N803
        bias: Tensor | None,
        output_shape: list[int],
    ) -> Tensor:
        """The product of quantised rows ``A`` and the weight ``B``, which lies as (N, K) and is given as (K, N)."""
        del out_dtype  # the configuration's
        scale_a, scale_b = (each.reshape(()) if each.numel() == 1 else each.reshape(-1, 1) for each in (As, Bs))
        product: Tensor = SCALED_MM(self, A, B.t(), scale_a, scale_b, bias)
        return product.view(*output_shape)


def _refused(config: Any) -> str:
    """Why ``scaled_mm`` cannot serve linear layers of a configuration; empty where it can."""
    weight, activation = config.weight_quant_key, config.activation_quant_key
    if weight.dtype not in _FLOAT8 or activation.dtype not in _FLOAT8:
        return "needs float8 weights and activations"
    if weight.scale2 is not None or activation.scale2 is not None or not (weight.symmetric and activation.symmetric):
        return "needs one symmetric scale"
    if not (weight.scale.group_shape.is_per_tensor() or weight.scale.group_shape.is_per_channel()):
        return "needs one weight scale for the tensor or for each row"
    if not (activation.scale.group_shape.is_per_tensor() or activation.scale.group_shape.is_per_token()):
        return "needs one activation scale for the tensor or for each token"
    return "" if config.out_dtype in DTYPES else f"has no result of {config.out_dtype}"


def _answer(reason: str) -> tuple[bool, str | None]:
    if not reason:
        return True, None
    left[reason] += 1
    return False, reason


def register() -> None:
    """Enters our kernel class for this platform; first, because vLLM takes the first that can, and appends others'."""
    ours = PortakernelFP8ScaledMMLinearKernel
    platform = current_platform._enum  # vLLM's own list is keyed by it
    if ours in kernels._POSSIBLE_FP8_KERNELS.get(platform, ()):
        return
    kernels.register_linear_kernel(ours, platform, "fp8")
    listed = kernels._POSSIBLE_FP8_KERNELS[platform]
    listed.insert(0, listed.pop())


def unregister() -> None:
    """Takes it back. Linear layers that have it keep it."""
    for listed in kernels._POSSIBLE_FP8_KERNELS.values():
        if PortakernelFP8ScaledMMLinearKernel in listed:
            listed.remove(PortakernelFP8ScaledMMLinearKernel)
