"""What is wrong in the files of a package's entries, as far as they tell: nothing of a plugin is imported."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from portakernel.registry.plugin_manager import Package
from portakernel.registry.source_files import imported, leads_nowhere, source_of, tree_of
from portakernel_kit.cli.validate.problems import Problem


def source_problems(package: Package, entries: Sequence[str]) -> Iterator[Problem]:
    """What is wrong in the files of the entries' modules: no Python, or an import of what the package does not have."""
    for module in dict.fromkeys(entry.partition(":")[0] for entry in entries):
        source = source_of(package, module)
        if source is None:
            continue
        try:
            tree = tree_of(source)
        except OSError as error:
            yield Problem(str(source), None, None, f"cannot be read: {error.strerror or error}")
            continue
        except (SyntaxError, ValueError) as error:
            line = error.lineno if isinstance(error, SyntaxError) else None
            text = error.msg if isinstance(error, SyntaxError) else str(error)
            yield Problem(str(source), line, None, f"is not Python, so that it cannot be imported: {text}")
            continue
        for node in tree.body:  # an import inside a function or a condition may never run
            for name in imported(node):
                if leads_nowhere(package, name):
                    yield Problem(str(source), node.lineno, None, f"imports {name!r}, which the package does not have")
