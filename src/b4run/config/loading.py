"""Finds an app's root and loads its `b4_config.py`, once, with everything that is wrong with it told together."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from b4run.config.issues import ConfigInvalid, Issue
from b4run.config.models import Config
from b4run.config.render import issues_of
from b4run.config.rules import rule_issues
from b4run.config.source import load_source
from b4run.errors import AppFileBroken, AppInvalid, B4Error, ConfigurationError
from b4run.sandbox.contract import Severity
from b4run.sandbox.paths import paths_relative_to
from b4run.strict import Fault, collect_faults

CONFIG_FILE = "b4_config.py"


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A configuration that may be used, and what its author should know."""

    root: Path
    config: Config
    warnings: tuple[Issue, ...]


def find_root(start: str | os.PathLike[str] | None = None) -> Path:
    """Return the nearest folder at or above `start` (default: the current one) that holds `b4_config.py`.

    Raises:
        AppInvalid: there is none; says where the search began.
    """
    begin = Path(start or ".").absolute()
    if not begin.is_dir():
        raise AppInvalid(reason=f"there is no folder {begin}")
    for folder in (begin, *begin.parents):
        if (folder / CONFIG_FILE).is_file():
            return folder.resolve()
    raise AppInvalid(reason=f"no {CONFIG_FILE} in {begin} or any folder above it")


def load_config(root: Path) -> LoadedConfig:
    """Load, validate and check the configuration of the app in `root`; opens nothing.

    Raises:
        AppFileBroken: the file itself fails.
        ConfigInvalid: it says something that cannot be used; lists every finding.
    """
    path = root.resolve() / CONFIG_FILE
    if not path.is_file():
        raise AppInvalid(reason=f"{root} has no {CONFIG_FILE}")
    with collect_faults(str(path)) as faults, paths_relative_to(path.parent):
        try:
            bound = getattr(load_source(path, path.parent), "config", None)
        except AppFileBroken as broken:
            _refuse(faults)
            if isinstance(broken.__cause__, B4Error):
                raise ConfigInvalid([_refused_by(broken.__cause__, broken)]) from broken
            raise
        config = bound if isinstance(bound, Config) else _from_mapping(bound, faults)
    _refuse(faults)
    issues = rule_issues(config, path.parent, CONFIG_FILE)
    refused = [issue for issue in issues if issue.severity is Severity.ERROR]
    if refused:
        raise ConfigInvalid(refused)
    return LoadedConfig(path.parent, config, tuple(issues))


def _from_mapping(bound: Any, faults: list[Fault]) -> Config:
    if isinstance(bound, Mapping) and all(isinstance(key, str) for key in bound):
        return Config(**bound)
    if not faults:
        found = "binds no `config`" if bound is None else f"`config` is of type {type(bound).__name__}"
        message = f"{found}; it must be a `Config(...)` or a dict with the same keys"
        raise ConfigInvalid([Issue(Severity.ERROR, ConfigurationError.code, "config", message, ConfigurationError.hint, CONFIG_FILE)])
    return Config()


def _refused_by(error: B4Error, broken: AppFileBroken) -> Issue:
    """What the file called said no: its own words are the finding."""
    return Issue(Severity.ERROR, error.code, "", error.message, error.remedy, broken.fields["file"], broken.fields["line"])


def _refuse(faults: list[Fault]) -> None:
    if faults:
        raise ConfigInvalid([issue for fault in faults for issue in issues_of(fault, CONFIG_FILE)])
