"""The configuration of an app: what `b4_config.py` binds to `config`."""

from b4run.config.issues import ConfigInvalid, Issue
from b4run.config.loading import CONFIG_FILE, LoadedConfig, find_root, load_config
from b4run.config.models import Config, Permissions, Rules, Sandbox, Staging
from b4run.sandbox.policy import Allow, Deny, Resources, Security, User

__all__ = [
    "CONFIG_FILE",
    "Allow",
    "Config",
    "ConfigInvalid",
    "Deny",
    "Issue",
    "LoadedConfig",
    "Permissions",
    "Resources",
    "Rules",
    "Sandbox",
    "Security",
    "Staging",
    "User",
    "find_root",
    "load_config",
]
