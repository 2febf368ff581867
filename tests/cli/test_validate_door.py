"""``portakernel validate`` names each line of a package that imports what may change without notice."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from portakernel_kit.cli.validate.allowed_imports import DOOR, past_the_door

ROOT = Path(__file__).parents[2]


@pytest.fixture
def package(tmp_path):
    def written(source, api=2):
        folder = tmp_path / "acme"
        folder.mkdir()
        (folder / "__init__.py").touch()
        (folder / "kernels.py").write_text(source)
        (folder / "plugin.yaml").write_text(f"schema_version: 1\nplugin: acme\nplugin_api: {api}\n")
        return folder

    return written


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        (
            "from portakernel.tensors.dense import delivered",
            (
                "imports portakernel.tensors.dense, which changes without notice; import delivered from"
                " portakernel.authoring.tensors"
            ),
        ),
        (
            "import portakernel.calling.caller",
            (
                "imports portakernel.calling.caller, which changes without notice; what plugins may import stands in"
                " portakernel.authoring, and docs/writing-a-kernel.md lists it"
            ),
        ),
        (
            "from portakernel import registry",
            (
                "imports portakernel.registry, which changes without notice; what plugins may import stands in"
                " portakernel.authoring, and docs/writing-a-kernel.md lists it"
            ),
        ),
        (
            "import portakernel_plugins.triton",
            (
                "imports portakernel_plugins.triton, which changes without notice; what plugins may import stands in"
                " portakernel.authoring, and docs/writing-a-kernel.md lists it"
            ),
        ),
        (
            "from portakernel_backends import nvidia",
            (
                "imports portakernel_backends.nvidia, which changes without notice; what plugins may import stands in"
                " portakernel.authoring, and docs/writing-a-kernel.md lists it"
            ),
        ),
        (
            "from portakernel_plugins.triton.rows import delivered",
            (
                "imports portakernel_plugins.triton.rows, which changes without notice; import delivered from"
                " portakernel.authoring.tensors"
            ),
        ),
        (
            "if True:\n    from portakernel.capability import CannotRun",
            "imports portakernel.capability, which changes without notice; import CannotRun from portakernel.authoring",
        ),
    ],
)
def test_a_line_past_the_door_is_named(run, package, line, advice):
    folder = package(f"import os\n{line}\n")
    ran = run(f"validate --json {folder}")
    (problem,) = ran.json["problems"]
    assert problem == {
        "file": str(folder / "kernels.py"),
        "line": 2 + line.count("\n"),
        "key": None,
        "text": advice,
    }
    assert ran.status == 1


@pytest.mark.parametrize(
    "source",
    [
        "import portakernel\nfrom portakernel import ops, __version__\nfrom portakernel.ops import add\n",
        "from portakernel.errors import PortakernelError\n",
        "from portakernel.authoring import CannotRun\nimport portakernel.authoring.tensors\n",
        "from . import other\nfrom .portakernel import thing\nimport portakernel_elsewhere\n",
        "this is no Python\n",
    ],
)
def test_what_every_caller_may_import_and_the_door_are_no_problem(package, source):
    assert list(past_the_door(package(source), 2)) == []


def test_packages_of_the_first_version_import_what_it_had(package):
    folder = package("from portakernel.capability import CannotRun\nfrom portakernel.native import Kernel\n", api=1)
    assert [problem.line for problem in past_the_door(folder, 1)] == [2]


@pytest.mark.parametrize("folder", ["plugins/portakernel_plugins", "backends/portakernel_backends", "examples"])
def test_our_own_packages_come_in_by_the_door_types_included(folder):
    for package in sorted(path.parent for path in (ROOT / folder).glob("*/__init__.py")):
        own = f"{Path(folder).name}.{package.name}"
        assert [str(problem) for problem in past_the_door(package, 2, own)] == []


def test_a_plugin_imports_its_own_modules_and_not_its_neighbours(package):
    folder = package("from portakernel_plugins.acme import rows\nfrom portakernel_plugins import acme, triton\n")
    told = [str(problem) for problem in past_the_door(folder, 2, "portakernel_plugins.acme")]
    assert [text.partition(":2: ")[2].partition(",")[0] for text in told] == ["imports portakernel_plugins.triton"]


def test_the_door_lists_what_it_imports_and_no_more():
    for path in sorted((ROOT / "portakernel" / "authoring").glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        imported = {
            alias.asname or alias.name
            for node in tree.body
            if isinstance(node, ast.ImportFrom) and node.module != "__future__"
            for alias in node.names
        }
        (listed,) = (ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign))
        assert imported == set(listed), f"{DOOR}.{path.stem}"
        assert listed == sorted(listed)
