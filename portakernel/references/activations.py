"""Activation functions by the names that contracts give them: value, slope, and the absolute terms behind both.

The tails are written without cancellation: ``1 + erf(z / sqrt(2))`` is ``erfc(-z / sqrt(2))``, ``(1 + tanh(u)) / 2`` is
``sigmoid(2 * u)``. Kernels may compute the sums as they stand, so the magnitudes are those of the sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

# tanh's form of gelu: Hendrycks & Gimpel 2016, arXiv 1606.08415, section 2
_CUBIC = 0.044715
_SCALE = math.sqrt(2 / math.pi)
# Beyond it the slope is 0 or 1, and powers in its formula might overflow float32.
_STRAIGHT = 1000.0


@dataclass(frozen=True, slots=True)
class Activation:
    """An elementwise function of ``z``.

    The magnitudes are the sums of the absolute terms that value and slope are sums of. ``curvature`` bounds the second
    derivative's absolute value: how much an error in ``z`` may move the slope.
    """

    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]
    value_magnitude: Callable[[Tensor], Tensor]
    slope_magnitude: Callable[[Tensor], Tensor]
    curvature: float


def _bell(z: Tensor) -> Tensor:
    """The normal distribution's density."""
    return torch.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)


def _gelu(z: Tensor) -> Tensor:
    return 0.5 * z * torch.erfc(-math.sqrt(0.5) * z)


def _gelu_slope(z: Tensor) -> Tensor:
    return 0.5 * torch.erfc(-math.sqrt(0.5) * z) + z * _bell(z)


def _gelu_magnitude(z: Tensor) -> Tensor:
    return 0.5 * z.abs() * (1 + torch.erf(math.sqrt(0.5) * z).abs())


def _gelu_slope_magnitude(z: Tensor) -> Tensor:
    return 0.5 * (1 + torch.erf(math.sqrt(0.5) * z).abs()) + z.abs() * _bell(z)


def _inner(z: Tensor) -> Tensor:
    return _SCALE * (z + _CUBIC * z * z * z)


def _inner_slope(z: Tensor) -> Tensor:
    return _SCALE * (1 + 3 * _CUBIC * z * z)


def _gelu_tanh(z: Tensor) -> Tensor:
    return z * torch.sigmoid(2 * _inner(z))


def _gelu_tanh_slope(z: Tensor) -> Tensor:
    z = z.clamp(-_STRAIGHT, _STRAIGHT)
    u = 2 * _inner(z)
    return torch.sigmoid(u) * (1 + z * torch.sigmoid(-u) * 2 * _inner_slope(z))


def _gelu_tanh_magnitude(z: Tensor) -> Tensor:
    return 0.5 * z.abs() * (1 + torch.tanh(_inner(z)).abs())


def _gelu_tanh_slope_magnitude(z: Tensor) -> Tensor:
    u = 2 * _inner(z)
    product = z.abs() * torch.sigmoid(u) * torch.sigmoid(-u) * 2 * _inner_slope(z)
    return 0.5 * (1 + torch.tanh(0.5 * u).abs()) + product


def _silu(z: Tensor) -> Tensor:
    return z * torch.sigmoid(z)


def _silu_slope(z: Tensor) -> Tensor:
    return torch.sigmoid(z) * (1 + z * torch.sigmoid(-z))


def _silu_slope_magnitude(z: Tensor) -> Tensor:
    return torch.sigmoid(z) * (1 + z.abs() * torch.sigmoid(-z))


def _step(z: Tensor) -> Tensor:
    # relu has no slope at 0, and torch says 0 there and 1 at NaN
    return torch.ones_like(z).masked_fill(z <= 0, 0)


ACTIVATIONS: Mapping[str, Activation] = MappingProxyType(
    {
        "none": Activation(lambda z: z, torch.ones_like, torch.abs, torch.ones_like, 0.0),
        "relu": Activation(torch.relu, _step, torch.relu, _step, 0.0),
        # curvatures: sqrt(2 / pi) at 0 for both gelus, 1/2 at 0 for silu
        "gelu": Activation(_gelu, _gelu_slope, _gelu_magnitude, _gelu_slope_magnitude, 0.8),
        "gelu_tanh": Activation(_gelu_tanh, _gelu_tanh_slope, _gelu_tanh_magnitude, _gelu_tanh_slope_magnitude, 0.8),
        "silu": Activation(_silu, _silu_slope, lambda z: _silu(z).abs(), _silu_slope_magnitude, 0.5),
    }
)
