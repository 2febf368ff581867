"""The function that ``portakernel.ops`` offers for an op, and what ``torch.compile`` sees of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from portakernel.calling.caller import OpCaller
from portakernel.calling.fast.expressions import Expressions
from portakernel.calling.fast.generated import define
from portakernel.calling.fast.out_source import has_fast_out, make_into
from portakernel.calling.fast.public_source import make_public
from portakernel.calling.outputs import check_distinct, check_outs, copy_into
from portakernel.contract.choices import existence
from portakernel.deciding.kernel_argument import STRICT_MARK
from portakernel.tensors.torch_internals import compiler


def public_function(caller: OpCaller) -> Callable[..., Any]:
    """The function that ``portakernel.ops`` offers for the caller's op."""
    contract, dispatcher, parts = caller.contract, caller.dispatcher, caller.expressions
    if not dispatcher.trace_token:
        dispatcher.refresh_trace_token()
    names = {
        "_table": caller.table.entries,
        "_context": dispatcher.context_layers.get,
        "_dispatcher": dispatcher,
        "_pinned": caller.policies.pinned,
        "_slow": caller.slow,
        "_traced": traced(caller),
        "_into": lambda *_: None,
        "_otherwise": caller.otherwise,
        "_train": caller.train or (lambda *_: None),
    }
    if isinstance(parts, Expressions) and has_fast_out(contract):
        names["_into"] = make_into(contract, parts, caller.signatures, names)
    made = make_public(contract, caller.lookup, names)
    caller.offered = made
    return made


def traced(caller: OpCaller) -> Callable[..., Any]:
    """The public function as ``torch.compile`` sees it.

    The policy's token is read as a guarded attribute: another policy means another graph. An exported program has no
    guards, and may run in another process: it holds no token, and leaves the choice to the policy of then.
    """
    contract = caller.contract
    given = ", ".join([*contract.names, *caller.arguments.parameters])
    inputs = ", ".join(tensor.name for tensor in contract.tensors if not tensor.optional)
    exist = ", ".join("True" if output.when is None else existence(output.when) for output in contract.outputs)
    public = ""
    if any(output.when for output in contract.outputs):
        public = f"""\
    _results = tuple(_result for _result, _exists in zip(_results, ({exist})) if _exists)
    _results = _results[0] if len(_results) == 1 else _results
"""
    source = f"""\
def traced({given}, out, kernel):
    _token = "" if _compiler._is_exporting_flag else _dispatcher.trace_token
    _results = _op({given}, _token if kernel is None else {STRICT_MARK!r} + kernel)
{public}    return _results if out is None else _write(out, _results, ({inputs},))
"""

    def write(out: Any, returned: Any, inputs: Sequence[Tensor]) -> Any:
        results = returned if isinstance(returned, tuple) else (returned,)
        forms = {str(place): (tuple(r.shape), r.dtype) for place, r in enumerate(results)}
        targets = check_outs(contract.op, out, forms, inputs[0].device, inputs)
        # where tensors lie only the run can tell; results are whole by now, so that they may be any input's memory
        check_distinct(contract.op, targets)
        for target, result in zip(targets, results, strict=True):
            copy_into(target, result)
        return out

    names = {
        "_op": caller.torch_op().default,
        "_dispatcher": caller.dispatcher,
        "_compiler": compiler,
        "_write": write,
    }
    made: Callable[..., Any] = define(source, "traced", f"{contract.op}.traced", names, compiles=True)
    return made
