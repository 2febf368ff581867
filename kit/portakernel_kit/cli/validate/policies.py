"""Everything that is wrong with policy files: file, line, key and text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from portakernel.config import Config
from portakernel.deciding.policies import NAMING, environment_layer
from portakernel.deciding.policy_document import PolicyDocument
from portakernel.deciding.policy_file import FILE_NAME, load_policy_file
from portakernel.deciding.process_wishes import allowed_plugins, read
from portakernel.deciding.unmet import unknown_names, unknown_plugins, unknown_switches
from portakernel.errors import PolicyFileError
from portakernel.manifest.yaml_file import keys_in
from portakernel.registry.plugin_manager import PluginManager
from portakernel.registry.registry import Registry
from portakernel_kit.cli.validate.problems import Problem, problems_in

_OF_MANIFESTS = {"plugin", "backend", "kernels"}


def policies_in_force() -> list[Path]:
    """The policy files that ``PORTAKERNEL_POLICY`` names, if any.

    Raises:
        ConfigError: a variable has a value that is not accepted.
    """
    return list(map(Path, Config.from_environment().policy))


def is_policy(file: Path) -> bool:
    """Whether a file is a policy, by its name or, where that says nothing, its keys."""
    if not file.is_file() or file.name in ("plugin.yaml", "backend.yaml"):
        return False
    if file.name == FILE_NAME:
        return True
    keys = set(keys_in(file) or ())
    return not keys & _OF_MANIFESTS and bool(keys & (PolicyDocument.model_fields.keys() - {"schema_version"}))


def problems_of_policies(
    files: Sequence[Path], *, variables: bool = False
) -> tuple[dict[Path, list[Problem]], list[Problem]]:
    """Each policy file's problems, and with ``variables`` those of ``PORTAKERNEL_*`` variables.

    Names are those of what is installed; one that nothing here has is a problem, under whatever key.
    """
    config = Config.from_environment()
    named = config.use or config.prefer or config.deny or config.plugins or config.disable
    found: dict[Path, list[Problem]] = {file: [] for file in files}
    if not files and not (variables and named):
        return found, []
    allowed = allowed_plugins(config, read(config.policy))
    registry = Registry(PluginManager(disabled=frozenset(config.disable), allowed=allowed))
    for file in files:
        try:
            load_policy_file(file, registry, strict=True)
        except PolicyFileError as error:
            found[file] = problems_in(file, error.problems)
    return found, list(_unknown_in_variables(config, registry)) if variables else []


def _unknown_in_variables(config: Config, registry: Registry) -> Iterator[Problem]:
    layer = environment_layer(config)
    for wish in (*unknown_names(layer, NAMING, registry), *unknown_plugins(layer, registry)):
        yield Problem(wish.where, None, None, wish.why)
    for error in unknown_switches(config.disable, registry):
        yield Problem("PORTAKERNEL_DISABLE", None, None, str(error).removeprefix("PORTAKERNEL_DISABLE: "))
