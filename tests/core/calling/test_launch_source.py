"""A launch's source with literals in the place of what it was given by name."""

from __future__ import annotations

from portakernel.calling.fast.launch_source import CallSource, LaunchSource

CALL = CallSource("kernel", ("x", "weight"), {"eps": "eps", "mask": "mask", "out": "out"})
LITERALS = {"eps": "1e-06", "out": "None"}


def test_literals_replace_names_and_what_the_kernel_takes_anyway_is_left_out():
    assert str(CALL.at(LITERALS, {"eps": "1e-05", "out": "None"})) == "kernel(x, weight, eps=1e-06, mask=mask)"
    assert str(CALL.at(LITERALS, {"eps": "1e-06"})) == "kernel(x, weight, mask=mask, out=None)"


def test_where_there_are_several_devices_both_calls_get_the_literals():
    launch = LaunchSource(CALL, CallSource("_elsewhere", ("x", "weight", "eps", "mask", "out")))
    here, elsewhere = "kernel(x, weight, eps=1e-06, mask=mask)", "_elsewhere(x, weight, 1e-06, mask, None)"
    expected = f"({here} if _current_index() == _index_here else {elsewhere})"
    assert str(launch.at(LITERALS, {"out": "None"})) == expected


def test_what_becomes_of_the_result_stays():
    gradients = CallSource("kernel", ("grad", "x"), {"needs": "(needs[0], )"}, "(lambda _g: (_g[0], None))({call})")
    expected = "(lambda _g: (_g[0], None))(kernel(grad, x, needs=(needs[0], )))"
    assert str(gradients) == str(gradients.at(LITERALS, {})) == expected
