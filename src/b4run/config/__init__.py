"""The configuration of an app: what `b4_config.py` binds to `config`."""

from b4run.config.issues import ConfigInvalid, Issue
from b4run.config.loading import CONFIG_FILE, LoadedConfig, find_root, load_config
from b4run.config.models import Config, Cors, Permissions, Rules, Sandbox, Server, Staging, ThreadPermissions
from b4run.config.thread import ThreadContext, ThreadPolicy, ThreadSandbox
from b4run.sandbox.policy import Allow, Deny, Resources, Security, User
from b4run.workspace import ExtraFile, WorkspaceDefinition, WorkspaceSource

__all__ = [
    "CONFIG_FILE",
    "Allow",
    "Config",
    "ConfigInvalid",
    "Cors",
    "Deny",
    "ExtraFile",
    "Issue",
    "LoadedConfig",
    "Permissions",
    "Resources",
    "Rules",
    "Sandbox",
    "Security",
    "Server",
    "Staging",
    "ThreadContext",
    "ThreadPermissions",
    "ThreadPolicy",
    "ThreadSandbox",
    "User",
    "WorkspaceDefinition",
    "WorkspaceSource",
    "find_root",
    "load_config",
]
