"""One tree of errors, which carry fields."""

from __future__ import annotations

import inspect
import pickle

import pytest

from portakernel import errors
from portakernel.claims.capability import CannotRun, ReasonCode, Rejection
from portakernel.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    CalledBackError,
    CaptureError,
    CompiledGraphError,
    ConfigError,
    DerivativeError,
    DriverError,
    IndexOutOfRangeError,
    ManifestError,
    MissingPackageError,
    NoKernelError,
    NotReturnedError,
    PlanError,
    PluginApiError,
    PluginError,
    PolicyFileError,
    PortakernelError,
    RankDisagreement,
    RankLostError,
    TransformError,
    UnknownNameError,
    WarmupError,
    nearest,
)

BASES = {
    UnknownNameError: (ValueError, AttributeError),
    ArgumentValueError: (ValueError,),
    IndexOutOfRangeError: (ValueError, IndexError),
    ArgumentTypeError: (TypeError,),
    ManifestError: (ValueError,),
    PluginError: (),
    PluginApiError: (ValueError,),
    ConfigError: (ValueError,),
    PlanError: (ValueError,),
    RankDisagreement: (),
    RankLostError: (),
    PolicyFileError: (ValueError,),
    NoKernelError: (NotImplementedError,),
    CaptureError: (),
    CompiledGraphError: (),
    WarmupError: (),
    DerivativeError: (NotImplementedError,),
    TransformError: (NotImplementedError,),
    MissingPackageError: (),
    NotReturnedError: (),
    DriverError: (),
    CalledBackError: (),
    CannotRun: (),
}


def test_every_error_is_in_the_table_above():
    members = [
        member for _, member in inspect.getmembers(errors, inspect.isclass) if member.__module__ == errors.__name__
    ]
    raised = {member for member in members if not issubclass(member, Warning)}
    assert raised == {*BASES, PortakernelError} - {CannotRun}


@pytest.mark.parametrize(("error", "bases"), BASES.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_every_error_is_under_the_root_and_is_what_python_calls_such_a_mistake(error, bases):
    assert issubclass(error, (PortakernelError,))
    assert {
        base
        for base in (ValueError, TypeError, IndexError, AttributeError, NotImplementedError)
        if issubclass(error, base)
    } == set(bases)


@pytest.mark.parametrize("name", ["ReferenceWarning", "FallbackWarning", "ManifestWarning"])
def test_warnings_are_user_warnings(name):
    assert issubclass(getattr(errors, name), UserWarning)


@pytest.mark.parametrize("error", [*BASES, PortakernelError], ids=lambda error: error.__name__)
def test_every_error_says_what_it_is(error):
    assert inspect.getdoc(error)


def test_an_unknown_name_carries_kind_name_and_what_is_known():
    error = UnknownNameError("op", "ad", ["sub", "add", "add"], where="kernels[0]", hint="See the docs.")
    assert (error.kind, error.unknown, error.known) == ("op", "ad", ("add", "sub"))
    assert str(error) == "kernels[0]: unknown op 'ad'; did you mean 'add'? See the docs."
    assert str(UnknownNameError("op", "ad", ["add"])) == "unknown op 'ad'; did you mean 'add'?"


def test_a_manifest_error_carries_the_file_and_each_problem():
    error = ManifestError("p.yaml", ["p.yaml:1: one", "p.yaml:2: two"])
    assert (error.path, error.problems) == ("p.yaml", ("p.yaml:1: one", "p.yaml:2: two"))
    assert str(error) == "p.yaml:1: one\np.yaml:2: two"


def test_a_policy_files_error_carries_the_file_each_problem_and_who_named_it():
    error = PolicyFileError("p.yaml", ["p.yaml:1: one", "p.yaml:2: two"], named_by="PORTAKERNEL_POLICY")
    assert isinstance(error, ConfigError)
    assert (error.path, error.problems) == ("p.yaml", ("p.yaml:1: one", "p.yaml:2: two"))
    assert error.named_by == "PORTAKERNEL_POLICY"
    assert str(error) == "PORTAKERNEL_POLICY: this policy file cannot be accepted:\np.yaml:1: one\np.yaml:2: two"
    assert str(PolicyFileError("p.yaml", ["p.yaml:1: one"])) == "p.yaml:1: one"


def test_a_plugin_error_carries_plugin_distribution_and_version():
    error = PluginError("no", plugin="p", distribution="p-dist", version="1.0")
    assert (str(error), error.plugin, error.distribution, error.version) == ("no", "p", "p-dist", "1.0")


@pytest.mark.parametrize(
    ("name", "known", "clause"),
    [
        ("ad", ["add", "sub"], "did you mean 'add'?"),
        ("aaab", ["aaac", "aaad", "zzz"], "did you mean 'aaad' or 'aaac'?"),
        ("zzz", ["b", "a"], "known: a, b"),
        ("zzz", [f"name{i}" for i in range(14)], "known: " + ", ".join(sorted(f"name{i}" for i in range(14)))),
        ("zzz", [f"name{i}" for i in range(15)], "15 are known, none of them close"),
    ],
)
def test_the_nearest_names_are_offered_and_all_of_them_when_they_are_few(name, known, clause):
    assert nearest(name, known) == clause


def test_where_nothing_is_known_nothing_is_counted():
    assert "0 are known" not in nearest("zzz", [])


def no_kernel(world) -> NoKernelError:
    world.plugin("p")
    dispatcher = world.dispatcher(REFERENCE="forbid", DENY="p")
    return dispatcher.decide(world.request()).error()


def test_no_kernel_carries_the_decision(world):
    error = no_kernel(world)
    assert error.decision.chosen is None
    assert {candidate.kernel.name for candidate in error.decision.candidates} == {"p.add", "reference.add"}


ERRORS = {
    "unknown name": UnknownNameError("op", "ad", ["add"], where="here", hint="See."),
    "argument value": ArgumentValueError("x"),
    "manifest": ManifestError("p.yaml", ["p.yaml:1: one", "p.yaml:2: two"]),
    "plugin": PluginError("no", plugin="p", distribution="p-dist", version="1.0"),
    "cannot run": CannotRun(Rejection(ReasonCode.SHARED_MEMORY, "too much", "N")),
}


@pytest.mark.parametrize("error", ERRORS.values(), ids=list(ERRORS))
def test_an_error_comes_whole_out_of_a_worker_process(error):
    """One that cannot be unpickled hangs a multiprocessing.Pool, or ends it."""
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_no_kernel_comes_out_of_a_worker_process(world):
    error = no_kernel(world)
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert str(again.decision) == str(error.decision)
