"""Everything that is wrong with policy files: file, line, key and text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from portakernel.cli.problems import Problem, problems_in
from portakernel.config import Config
from portakernel.errors import ManifestError, PolicyFileError
from portakernel.plugin_manager import PluginManager
from portakernel.policy_file import FILE_NAME, PolicyDocument, load_policy_file
from portakernel.registry import Registry
from portakernel.yaml_file import read_yaml

_OF_MANIFESTS = {"plugin", "backend", "kernels"}


def policy_in_force() -> list[Path]:
    """The policy file that ``PORTAKERNEL_POLICY`` names, if any.

    Raises:
        ConfigError: a variable has a value that is not accepted.
    """
    named = Config.from_environment().policy
    return [Path(named).expanduser()] if named is not None else []


def is_policy(file: Path) -> bool:
    """Whether a file is a policy, by its name or, where that says nothing, its keys."""
    if not file.is_file() or file.name in ("plugin.yaml", "backend.yaml"):
        return False
    if file.name == FILE_NAME:
        return True
    try:
        data = read_yaml(file).data
    except ManifestError:
        return False
    keys = set(data) if isinstance(data, dict) else set[str]()
    return not keys & _OF_MANIFESTS and bool(keys & (PolicyDocument.model_fields.keys() - {"schema_version"}))


def problems_of_policies(files: Sequence[Path]) -> dict[Path, list[Problem]]:
    """Each policy file's problems. The names in it are those of what is installed."""
    if not files:
        return {}
    registry = Registry(PluginManager(disabled=frozenset(Config.from_environment().disable)))
    found = dict[Path, list[Problem]]()
    for file in files:
        found[file] = []
        try:
            load_policy_file(file, registry)
        except PolicyFileError as error:
            found[file] = problems_in(file, error.problems)
    return found
