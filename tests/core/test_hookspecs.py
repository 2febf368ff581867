"""Every hook is documented with a whole example."""

from __future__ import annotations

import ast
import inspect
import textwrap

import pytest

from portakernel import hookspecs

SPECS = {name: getattr(hookspecs, name) for name in hookspecs.HOOKS}


def example(name: str) -> ast.FunctionDef:
    """The function in the example of a hook's docstring."""
    indented = inspect.getdoc(SPECS[name]).partition("::\n")[2]
    (function,) = ast.parse(textwrap.dedent(indented)).body
    return function


def test_the_list_of_hooks_is_that_of_the_module():
    marked = {name for name, member in vars(hookspecs).items() if hasattr(member, "portakernel_spec")}
    assert marked == set(hookspecs.HOOKS)
    assert len(hookspecs.HOOKS) == len(marked)


@pytest.mark.parametrize("name", hookspecs.HOOKS)
def test_a_hooks_docstring_holds_an_implementation_of_it(name):
    documentation = inspect.getdoc(SPECS[name])
    assert "@hookimpl" in documentation
    assert f"def {name}(" in documentation


@pytest.mark.parametrize("name", hookspecs.HOOKS)
def test_the_example_is_python_with_the_hooks_own_arguments(name):
    function = example(name)
    assert function.name == name
    assert [ast.unparse(decorator) for decorator in function.decorator_list] == ["hookimpl"]
    assert [argument.arg for argument in function.args.args] == list(inspect.signature(SPECS[name]).parameters)


@pytest.mark.parametrize("name", hookspecs.HOOKS)
def test_the_first_line_says_what_the_hook_is_for(name):
    first = inspect.getdoc(SPECS[name]).splitlines()[0]
    assert first.endswith((".", "::"))
    assert first[0].isupper()
