"""What is switched on: which models and layers, since when, and how they were before."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterable
from functools import partial
from weakref import WeakKeyDictionary, WeakSet

from torch import nn
from transformers import PreTrainedModel

from portakernel.errors import ArgumentTypeError, ArgumentValueError
from portakernel.integrations.client import EnabledLayer, client
from portakernel.integrations.enabled_ops import enabled_ops
from portakernel.integrations.outcome import Enabled, Left, Outcome, Replaced
from portakernel.integrations.served_layer import ServedLayer
from portakernel.integrations.transformers import layers, seams
from portakernel.integrations.transformers.families import FAMILIES, MODEL_TYPES, Family, family_of, family_of_module
from portakernel.integrations.transformers.layers import (
    NAME,
    Forward,
    adapter_of,
    gate_of,
    mlp_forward,
    norm_forward,
    rotary_forward,
)
from portakernel.integrations.transformers.mixtures import experts_forward, experts_refusal, router_forward

ATTENTION = "attention"
ROTARY = "rotary_embedding"
GATES = frozenset({"silu_and_mul", "gelu_and_mul"})
MIXTURES = frozenset({"moe_route", "moe_mlp"})
LAYERS = GATES | MIXTURES | {"rms_norm"}
OPS = LAYERS | {ATTENTION, ROTARY}


class Switch:
    """Everything that ``enable`` changed, so that ``disable`` can restore it. Models that are gone are forgotten."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._forwards: WeakKeyDictionary[nn.Module, Forward] = WeakKeyDictionary()
        self._attention_before: WeakKeyDictionary[PreTrainedModel, str] = WeakKeyDictionary()
        self._models: WeakSet[PreTrainedModel] = WeakSet()
        # The models that asked for their family's rotary function; it is shared.
        self._rotary: WeakKeyDictionary[nn.Module, WeakSet[PreTrainedModel]] = WeakKeyDictionary()
        self._everywhere: set[str] = set()
        self._births: WeakSet[nn.Module] = WeakSet()
        self._unwatch: Callable[[], None] | None = None

    def enable(self, model: PreTrainedModel | None, ops: Iterable[str] | None) -> Enabled:
        """As ``portakernel.integrations.transformers.enable``."""
        wanted = None if ops is None else enabled_ops(NAME, ops, OPS, "attention")
        with self._lock:
            if model is None:
                undo = None if self._everywhere else self.disable_everywhere
                return Enabled(self._enable_everywhere(wanted or OPS), undo)
            family = _checked_family(model)
            undone = None if model in self._models else partial(self.disable, model)
            return Enabled(self._enable_model(model, family, wanted), undone)

    def disable(self, model: PreTrainedModel | None) -> None:
        """As ``portakernel.integrations.transformers.disable``."""
        if model is not None and not isinstance(model, nn.Module):
            raise ArgumentTypeError(f"disable takes a model, or nothing for all; this is {model!r}")
        with self._lock:
            if model is not None:
                self._disable_model(model)
                return
            for each in list(self._models):
                self._disable_model(each)
            self.disable_everywhere()

    def disable_everywhere(self) -> None:
        """Takes back ``enable`` without a model; models that were enabled themselves stay so."""
        with self._lock:
            if ATTENTION in self._everywhere:
                seams.restore_sdpa()
            if self._unwatch is not None:
                self._unwatch()
                self._unwatch = None
            self._everywhere.clear()
            for module in list(self._births):
                self._reset(module)
            self._births.clear()
            for function, asked in list(self._rotary.items()):
                if not asked:
                    self._reset(function)
                    del self._rotary[function]
            if not self._models:
                client(NAME).disable()

    def _enable_model(self, model: PreTrainedModel, family: Family, wanted: frozenset[str] | None) -> Outcome:
        outcome = Outcome()
        self._models.add(model)
        if wanted is None or ATTENTION in wanted:
            outcome += self._set_attention(model)
        for module in model.modules():
            outcome += self._set_layer(module, family, wanted or LAYERS)
        if wanted is not None and ROTARY in wanted:
            outcome += self._set_rotary(family, model)
        elif wanted is None:
            reason = "one function for all models of the family: name rotary_embedding in ops to replace it for all"
            outcome += Left(ROTARY, f"{family.module}'s apply_rotary_pos_emb", reason)
        return outcome

    def _set_attention(self, model: PreTrainedModel) -> Outcome:
        before = seams.attention_of(model)
        if before == seams.NAME:
            return Outcome((Replaced(ATTENTION, f'attn_implementation="{seams.NAME}", as before'),))
        seams.register_attention()
        model.set_attn_implementation(seams.NAME)
        found = seams.attention_of(model)
        if found != seams.NAME:
            reason = f"{type(model).__name__} cannot change it; its attention is {found}"
            return Outcome(left=(Left(ATTENTION, "attn_implementation", reason),))
        self._attention_before[model] = before
        return Outcome((Replaced(ATTENTION, f'attn_implementation="{seams.NAME}", before: "{before}"'),))

    def _set_layer(self, module: nn.Module, family: Family, wanted: frozenset[str]) -> Outcome:
        """Replaces the module's forward where it is a layer of the family that one of the ops can serve."""
        name, mixture = type(module).__name__, family.mixture
        if type(module).__module__ != family.modelling_module:
            return Outcome()
        if name == family.norm.name:
            op, forward = "rms_norm", norm_forward(family.norm)
        elif name == family.gated_mlp:
            op, forward = gate_of(module), mlp_forward
            if not op:
                if not wanted & GATES:
                    return Outcome()
                reason = f"no op has the activation {type(module.act_fn).__name__}"
                return Outcome(left=(Left("silu_and_mul, gelu_and_mul", name, reason),))
        elif mixture is not None and name == mixture.router:
            op, forward = "moe_route", router_forward(mixture)
        elif mixture is not None and name == mixture.experts and "moe_mlp" in wanted:
            op, forward = "moe_mlp", experts_forward(mixture)
            reason = experts_refusal(module, mixture)
            if reason:
                return Outcome(left=(Left(op, name, reason),))
        elif mixture is not None and name == mixture.experts and wanted & GATES:
            return Outcome(left=(Left(", ".join(sorted(GATES)), name, "these are moe_mlp's experts"),))
        else:
            return Outcome()
        if op not in wanted:
            return Outcome()
        if module not in self._forwards:
            if seams.has_forward_of_its_own(module):
                return Outcome(left=(Left(op, name, "somebody else replaced the instance's forward"),))
            seams.set_forward(module, forward)
            self._forwards[module] = forward
        _expect_calls(adapter_of(module, forward), module)
        return Outcome((Replaced(op, name),))

    def _set_rotary(self, family: Family, model: PreTrainedModel | None) -> Outcome:
        name = f"{family.module}'s apply_rotary_pos_emb, in all models"
        function = seams.rotary_function(family)
        if function is None:
            reason = "transformers lets it be replaced only with the package kernels, in a version that it accepts"
            return Outcome(left=(Left(ROTARY, name, reason),))
        if function not in self._forwards:
            if seams.has_forward_of_its_own(function):
                return Outcome(left=(Left(ROTARY, name, "somebody else replaced its forward"),))
            seams.set_forward(function, rotary_forward)
            self._forwards[function] = rotary_forward
        _expect_calls(layers.ROTARY, function)
        asked = self._rotary.setdefault(function, WeakSet())
        if model is not None:
            asked.add(model)
        return Outcome((Replaced(ROTARY, name),))

    def _enable_everywhere(self, wanted: frozenset[str]) -> Outcome:
        outcome = Outcome()
        if ATTENTION in wanted:
            seams.register_attention()
            seams.register_as_sdpa()
            outcome += Replaced(ATTENTION, 'attn_implementation="sdpa", in all models')
            reason = f'not "sdpa": give them attn_implementation="{seams.NAME}"'
            outcome += Left(ATTENTION, "models set to eager (gpt_oss is by default) or flash attention", reason)
        if wanted & LAYERS:
            layers = ", ".join(sorted(wanted & LAYERS))
            outcome += Replaced(layers, f"layers made from now on, of {', '.join(sorted(MODEL_TYPES))}")
            outcome += Left(layers, "models that exist", "call enable(model) for each")
        self._everywhere |= wanted
        if ROTARY in wanted:
            for family in FAMILIES:
                if family.modelling_module in sys.modules:
                    outcome += self._set_rotary(family, None)
            outcome += Replaced(ROTARY, "families whose first layer is made from now on")
        if self._unwatch is None and wanted & (LAYERS | {ROTARY}):
            self._unwatch = seams.watch_births(self._born)
        return outcome

    def _born(self, module: nn.Module) -> None:
        """A module became part of another one: of a model to come, if it is a layer of a family."""
        family = family_of_module(type(module).__module__)
        if family is None:
            return
        with self._lock:
            self._set_layer(module, family, frozenset(self._everywhere))
            if module in self._forwards:
                self._births.add(module)
            if ROTARY in self._everywhere:
                self._set_rotary(family, None)

    def _disable_model(self, model: PreTrainedModel) -> None:
        self._models.discard(model)
        before = self._attention_before.pop(model, None)
        if before is not None and seams.attention_of(model) == seams.NAME:
            model.set_attn_implementation(before)
        for module in model.modules():
            self._reset(module)
        for function, asked in list(self._rotary.items()):
            if model in asked:
                asked.discard(model)
                if not asked and ROTARY not in self._everywhere:
                    self._reset(function)
                    del self._rotary[function]

    def _reset(self, module: nn.Module) -> None:
        forward = self._forwards.pop(module, None)
        if forward is not None:
            seams.reset_forward(module, forward)
            client(NAME).forget(module)


@functools.cache
def switch() -> Switch:
    """The process's switch."""
    return Switch()


def _expect_calls(adapter: ServedLayer | None, module: nn.Module) -> None:
    """Lets ``report`` say where an enabled layer gets no calls."""
    if adapter is not None:
        client(NAME).enable(EnabledLayer(adapter.layer, adapter.op, "run the model, or see who replaced its forward"))
        client(NAME).born(adapter.layer, module)


def _checked_family(model: object) -> Family:
    if not isinstance(model, PreTrainedModel):
        raise ArgumentTypeError(
            f"enable takes a model of transformers (a PreTrainedModel); {type(model).__name__} was given. Of a wrapper,"
            " give the model inside"
        )
    family = family_of(model.config.model_type)
    if family is None:
        raise ArgumentValueError(
            f"enable: {type(model).__name__} has the model type {model.config.model_type!r}, which was not tested;"
            f" tested are {', '.join(sorted(MODEL_TYPES))}. Its attention alone may still be served: call enable()"
            " without a model, which serves what is set to sdpa"
        )
    return family
