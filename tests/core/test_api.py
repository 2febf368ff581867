"""explain, policy, use, set_policy, targets, plugins and stats."""

from __future__ import annotations

import asyncio
import threading

import pytest

import portakernel
from portakernel import runtime
from portakernel.config import Config
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.errors import ArgumentTypeError, ArgumentValueError, PortakernelError, UnknownNameError
from portakernel.registry.plugin_manager import PluginManager
from portakernel.registry.registry import Registry


@pytest.fixture
def here(world, monkeypatch):
    """What ``portakernel.*`` sees: vendor ``acme`` with two devices, plugins ``a`` (20) and ``b`` (10)."""
    world.packages.clear()
    devices = [("acme1", "acme:0"), ("acme2", "acme:1")]
    listed = ", ".join(f"Device(Target('acme', {arch!r}), 'Acme', {name!r})" for arch, name in devices)
    world.backend(
        "acme",
        lines=[["acme1", "acme2"]],
        source=f"""\
from portakernel.hookspecs import hookimpl
from portakernel.words.target import Device, Target
@hookimpl
def portakernel_targets():
    return [Device(Target('acme', 'acme1'), 'Unreachable', None, note='torch is a CPU build'), {listed}]
""",
    )
    world.plugin("a", {"priority": 20}, {"op": "rms_norm"})
    world.plugin("b", {"priority": 10})
    dispatcher = world.dispatcher()
    monkeypatch.setattr("portakernel.api.dispatcher", lambda: dispatcher)
    return dispatcher


def chosen(op: str = "add") -> str | None:
    kernel = portakernel.explain(op, target="acme:acme1").chosen
    return kernel.name if kernel else None


# --- explain ---------------------------------------------------------------------------------------------------------


def test_explain_answers_for_a_target_with_as_much_as_is_given(here):
    decision = portakernel.explain(
        "rms_norm", target="acme:acme2", dtype="bfloat16", shape={"x": (4, 8)}, phase="backward", weight_offset=1.0
    )
    text = "rms_norm (backward) on acme:acme2 with x bfloat16, weight bfloat16, M=4, N=8, weight_offset=1.0"
    assert str(decision.request) == text
    assert decision.request.device is None
    assert [candidate.kernel.name for candidate in decision.candidates] == ["reference.rms_norm", "a.rms_norm"]


def test_explain_without_a_target_is_about_the_first_device_that_torch_reaches(here):
    request = portakernel.explain("add").request
    assert (str(request.target), request.device.name, request.device.torch_device) == ("acme:acme1", "Acme", "acme:0")


def test_explain_without_a_target_or_a_device_says_what_to_do(world, monkeypatch):
    dispatcher = world.dispatcher()
    monkeypatch.setattr("portakernel.api.dispatcher", lambda: dispatcher)
    with pytest.raises(ArgumentValueError) as caught:
        portakernel.explain("add")
    message = "no backend found a device that torch reaches; name a target, such as nvidia:sm_90"
    assert str(caught.value) == message


def test_explain_without_a_device_names_the_backends_that_are_off(world, monkeypatch):
    dispatcher = world.dispatcher(DISABLE="acme")
    monkeypatch.setattr("portakernel.api.dispatcher", lambda: dispatcher)
    with pytest.raises(ArgumentValueError) as caught:
        portakernel.explain("add")
    assert str(caught.value).endswith(". Backends that are off: acme (PORTAKERNEL_DISABLE switches it off)")
    with pytest.raises(UnknownNameError) as unknown:
        portakernel.explain("add", device="acme:0")
    assert str(unknown.value) == (
        "unknown device 'acme:0'; none is known. The acme backend looks for no device here: PORTAKERNEL_DISABLE"
        " switches it off"
    )


def test_explains_candidates_are_the_ops_kernels(here):
    decision = portakernel.explain("add", target="acme:acme1")
    names = {candidate.kernel.name for candidate in decision.candidates}
    assert names == {kernel.name for kernel in here.registry.for_op("add")}
    assert len(decision.candidates) == len(names)


NOT_BOTH = "explain takes tensors, or {}, not both: rms_norm has no parameter called so, and its tensors have their own"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"op": "ad"}, UnknownNameError, "unknown op 'ad'; did you mean 'add'?"),
        ({"target": "acm:acme1"}, UnknownNameError, "unknown vendor 'acm'; did you mean 'acme'?"),
        (
            {"target": "acme:acme3x"},
            UnknownNameError,
            "unknown acme arch or product 'acme3x'; did you mean 'acme2' or 'acme1'? acme has\n  acme1\n  acme2",
        ),
        (
            {"target": "acme3"},
            ArgumentValueError,
            (
                "target 'acme3' is not of the form vendor:arch, such as nvidia:sm_90 or amd:gfx942, and no product that"
                " a backend lists, such as h100; did you mean 'acme2' or 'acme1'?"
            ),
        ),
        (
            {"dtype": "bfloat61"},
            UnknownNameError,
            "unknown dtype 'bfloat61'; did you mean 'bfloat16' or 'float64' or 'float16'?",
        ),
        (
            {"dtype": "int8"},
            ArgumentTypeError,
            "add: x and y cannot be int8; x and y can be float32, float16 or bfloat16",
        ),
        (
            {"shape": {"x": (2,), "y": (3,)}},
            ArgumentValueError,
            "add: y has shape (3,), but x has leading dimensions (2,); they must be equal (broadcasting is refused)",
        ),
        ({"phase": "train"}, UnknownNameError, "unknown phase 'train'; did you mean 'training'?"),
    ],
)
def test_explain_refuses_what_does_not_exist(here, arguments, error, message):
    with pytest.raises(error) as caught:
        portakernel.explain(**{"op": "add", "target": "acme:acme1", **arguments})
    assert str(caught.value) == message


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def test_explain_with_tensors_is_about_exactly_that_call(torch):
    x, weight = torch.ones(3, 16, dtype=torch.bfloat16), torch.ones(16)
    decision = portakernel.explain("rms_norm", x[:, ::2], weight[::2], weight_offset=1.0, phase="training")
    request = decision.request
    assert request.target.vendor == "cpu"
    assert request.dtypes == {"x": "bfloat16", "weight": "float32"}
    assert request.dims == {"M": 3, "N": 8}
    assert request.features == {"weight_offset": 1.0}
    assert (request.facts["x.stride_last"], request.facts["x.contiguous"], request.facts["weight.stride_last"]) == (
        2,
        False,
        2,
    )
    assert (request.phase, request.device.torch_device) == ("training", "cpu")
    assert decision.chosen.name == "torch.rms_norm_cpu"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"target": "cpu:x86_64"},
            ArgumentTypeError,
            NOT_BOTH.format("target"),
        ),
        (
            {"dtype": "float32"},
            ArgumentTypeError,
            NOT_BOTH.format("dtype"),
        ),
        (
            {"shape": {"x": (3,)}},
            ArgumentTypeError,
            NOT_BOTH.format("shape"),
        ),
        ({"phase": "train"}, UnknownNameError, "unknown phase 'train'; did you mean 'training'?"),
        ({"epz": 1.0}, UnknownNameError, "rms_norm: unknown parameter 'epz'; did you mean 'eps'?"),
        ({"eps": "small"}, ArgumentTypeError, "rms_norm: eps must be a number from 0 up; this is str 'small'"),
    ],
)
def test_explain_with_tensors_refuses_what_does_not_go_with_them(torch, arguments, error, message):
    with pytest.raises(error) as caught:
        portakernel.explain("rms_norm", torch.ones(3, 8), torch.ones(8), **arguments)
    assert str(caught.value) == message


def test_explain_with_tensors_checks_them(torch):
    with pytest.raises(ArgumentTypeError) as caught:
        portakernel.explain("add", torch.ones(3))
    assert str(caught.value) == "add: y is not given"
    with pytest.raises(ArgumentValueError) as caught:
        portakernel.explain("add", torch.ones(3), torch.ones(4))
    message = "add: y has shape (4,), but x has leading dimensions (3,); they must be equal (broadcasting is refused)"
    assert str(caught.value) == message
    with pytest.raises(ArgumentTypeError) as caught:
        portakernel.explain("add", torch.ones(3), torch.ones(3, dtype=torch.float16))
    assert str(caught.value) == "add: y is float16; it must be float32"
    with pytest.raises(ArgumentTypeError) as caught:
        portakernel.explain("add", torch.ones(3), [1.0, 1.0, 1.0])
    assert (
        str(caught.value)
        == "add: y must be a tensor; this is list: torch.tensor(y, dtype=x.dtype, device=x.device) makes one, best once"
        " and not in each call"
    )


# --- policy ----------------------------------------------------------------------------------------------------------


def test_a_context_holds_inside_its_block_and_not_after_it(here):
    assert chosen() == "a.add"
    with portakernel.policy(prefer="b"):
        assert chosen() == "b.add"
    assert chosen() == "a.add"


def test_contexts_nest_and_the_inner_one_decides(here):
    with portakernel.policy(use="b", deny="reference"):
        with portakernel.policy(prefer="a"):
            decision = portakernel.explain("add", target="acme:acme1")
            assert (decision.chosen.name, decision.why) == ("a.add", "context prefers it")
            assert [r.text for r in decision.candidate("reference.add").rejections] == ["denied by context"]
        assert chosen() == "b.add"
    assert chosen() == "a.add"


def test_a_context_is_left_when_its_block_raises(here):
    with pytest.raises(KeyError), portakernel.use("b"):
        raise KeyError
    assert chosen() == "a.add"


def test_a_context_with_an_unknown_name_is_not_entered(here):
    with pytest.raises(UnknownNameError) as caught, portakernel.policy(use="c.add"):
        pass
    assert str(caught.value) == "context: use: unknown kernel or plugin 'c.add'; did you mean 'b.add' or 'a.add'?"
    assert chosen() == "a.add"


def test_use_is_a_strict_policy(here):
    with portakernel.use("b.add", "a.add"):
        assert chosen() == "b.add"
        assert chosen("rms_norm") == "a.rms_norm"


def test_a_context_gives_the_policy_in_force_the_same_object_for_the_same_wishes(here):
    with portakernel.policy(prefer="b") as first:
        pass
    with portakernel.policy(prefer=["b"]) as second:
        assert here.policy() is second
    assert first is second
    assert first is not here.policy()


def test_a_block_may_be_entered_again_and_inside_itself(here):
    block = portakernel.policy(prefer="b")
    for _ in range(2):
        with block as outer, portakernel.use("a"), block as inner:
            assert chosen() == "b.add"
        assert (len(outer.layers), len(inner.layers)) == (2, 4)
        assert chosen() == "a.add"


def test_a_decorated_function_runs_in_its_block_whenever_and_however_deep_it_is_called(here):
    @portakernel.policy(prefer="b")
    def chosen_inside(deeper: int) -> list[str | None]:
        return [chosen(), *(chosen_inside(deeper - 1) if deeper else [])]

    assert (chosen_inside(2), chosen_inside(0), chosen()) == (["b.add"] * 3, ["b.add"], "a.add")
    assert chosen_inside.__name__ == "chosen_inside"


def test_threads_and_tasks_share_a_block_and_each_leaves_its_own(here):
    block, seen = portakernel.policy(prefer="b"), list[str | None]()

    async def inside(first: asyncio.Event, then: asyncio.Event) -> None:
        with block:
            first.set()
            await then.wait()
            seen.append(chosen())
        seen.append(chosen())

    async def both() -> None:
        one, other = asyncio.Event(), asyncio.Event()
        await asyncio.gather(inside(one, other), inside(other, one))

    asyncio.run(both())
    assert seen == ["b.add", "a.add"] * 2
    with block:
        thread = threading.Thread(target=lambda: seen.append(chosen()))
        thread.start()
        thread.join()
    assert seen[-1] == "a.add"


def test_a_block_is_left_where_it_was_entered(here):
    block = portakernel.policy(prefer="b")
    with pytest.raises(
        PortakernelError, match=r"^a policy block is left in another thread or task than it was entered"
    ):
        block.__exit__(None, None, None)


def test_a_thread_does_not_see_the_context_of_another(here):
    seen: list[str | None] = []
    with portakernel.use("b"):
        thread = threading.Thread(target=lambda: seen.append(chosen()))
        thread.start()
        thread.join()
        assert chosen() == "b.add"
    assert seen == ["a.add"]


def test_tasks_keep_their_contexts_apart(here):
    async def under(name: str, mine: asyncio.Event, other: asyncio.Event) -> str | None:
        with portakernel.use(name):
            mine.set()
            await other.wait()
            return chosen()

    async def both() -> list[str | None]:
        one, two = asyncio.Event(), asyncio.Event()
        return await asyncio.gather(under("a", one, two), under("b", two, one))

    assert asyncio.run(both()) == ["a.add", "b.add"]


def test_the_processs_policy_reaches_all_threads_and_lies_under_contexts(here):
    portakernel.set_policy(use="b")
    seen: list[str | None] = []
    thread = threading.Thread(target=lambda: seen.append(chosen()))
    thread.start()
    thread.join()
    assert seen == [chosen()] == ["b.add"]
    assert portakernel.explain("add", target="acme:acme1").why == "set_policy uses it"
    with portakernel.policy(prefer="a"):
        assert chosen() == "a.add"
    portakernel.set_policy()
    assert chosen() == "a.add"


def test_the_processs_policy_replaces_the_one_before_it(here):
    portakernel.set_policy(deny="a")
    portakernel.set_policy(deny="b")
    assert chosen() == "a.add"


def test_the_processs_policy_stays_when_the_new_one_is_wrong(here):
    portakernel.set_policy(use="b")
    with pytest.raises(UnknownNameError) as caught:
        portakernel.set_policy(use="c.add")
    assert str(caught.value).startswith("set_policy: use: unknown kernel or plugin 'c.add'; ")
    assert chosen() == "b.add"


def test_require_and_reference_are_part_of_a_policy(here):
    with portakernel.policy(require="deterministic", reference="forbid"):
        decision = portakernel.explain("add", target="acme:acme1")
    assert decision.chosen is None
    reasons = {c.kernel.name: [str(r.code) for r in c.rejections] for c in decision.candidates}
    assert reasons == {
        "a.add": ["not_deterministic"],
        "b.add": ["not_deterministic"],
        "reference.add": ["denied_by_policy"],
    }


# --- targets, plugins, stats -----------------------------------------------------------------------------------------


def test_targets_are_the_devices_that_the_backends_found(here):
    found = [(str(device.target), device.torch_device, device.note) for device in portakernel.targets()]
    unreachable = ("acme:acme1", None, "torch is a CPU build")
    assert found == [unreachable, ("acme:acme1", "acme:0", ""), ("acme:acme2", "acme:1", "")]


def test_plugins_lists_what_is_installed_the_broken_and_the_disabled_too(world, monkeypatch):
    world.plugin("p", {}, {"op": "rms_norm"})
    world.plugin("q", first_party=False)
    bad = world.site.package("bad", plugin="schema_version: 1\nplugin: bad\ncolour: red\n")
    manager = PluginManager([*world.packages, bad], disabled=frozenset({"q"}))
    dispatcher = Dispatcher(Registry(manager), Config(disable=("q",)))
    monkeypatch.setattr("portakernel.api.dispatcher", lambda: dispatcher)
    states = {state.package.name: state for state in portakernel.plugins()}
    assert list(states) == ["acme", "p", "q", "bad"]
    assert {name: state.kernels for name, state in states.items()} == {
        "acme": (),
        "p": ("p.add", "p.rms_norm"),
        "q": ("q.add",),
        "bad": (),
    }
    assert [name for name, state in states.items() if state.backend] == ["acme"]
    assert [name for name, state in states.items() if state.disabled] == ["q"]
    assert {name: len(state.broken) for name, state in states.items()} == {"acme": 0, "p": 0, "q": 0, "bad": 1}
    assert ":3: colour: unknown key; " in states["bad"].broken[0].reason


def test_what_is_installed_here_is_whole():
    states = {state.package.name: state for state in portakernel.plugins() if state.package.first_party}
    peers = {"conch", "flash_attn", "flashinfer", "humming", "liger", "quack"}
    plugins = {*peers, "cutlass", "cutlass_dsl", "hip", "inductor", "torch", "triton"}
    assert set(states) == plugins | {"nvidia", "amd", "intel", "apple", "cpu"}
    assert [state.broken for state in states.values() if state.broken] == []
    assert states["triton"].kernels[:2] == ("triton.add", "triton.rms_norm")
    assert len(states["triton"].kernels) == 53
    assert {name for name, state in states.items() if state.backend} == {"nvidia", "amd", "intel", "apple", "cpu"}


def test_stats_count_the_calls_that_each_kernel_served(torch):
    def served() -> dict[str, int]:
        rows = [row for row in portakernel.stats() if (row.op, row.phase) == ("add", "inference")]
        assert all(row.target.startswith("cpu:") for row in rows)
        assert all(row.calls > 0 for row in rows)
        return {name: sum(row.calls for row in rows if row.kernel == name) for name in ("torch.add", "reference.add")}

    before, x = served(), torch.ones(3, 5)
    for _ in range(3):
        portakernel.ops.add(x, x)
    portakernel.ops.add(x, x, kernel="reference.add")
    after = served()
    gained = {name: after[name] - before[name] for name in after}
    assert gained == {"torch.add": 3, "reference.add": 1}


def test_stats_come_most_first(torch):
    x = torch.ones(3)
    for _ in range(2):
        portakernel.ops.add(x, x)
    calls = [row.calls for row in portakernel.stats()]
    assert calls == sorted(calls, reverse=True)


def test_the_process_has_one_dispatcher_also_when_threads_come_first_together():
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(runtime.dispatcher())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(map(id, found))) == 1


def test_a_dispatcher_that_is_made_is_handed_out_while_ops_are_registered():
    found = [runtime.dispatcher()]
    thread = threading.Thread(target=lambda: found.append(runtime.dispatcher()))
    with runtime._making("the registration of ops"):
        thread.start()
        thread.join(timeout=10)
        assert not thread.is_alive()
    assert found[0] is found[1]
