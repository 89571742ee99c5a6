"""Permissions: what an agent may do without asking, what it may never do, and who said so."""

from b4run.permissions.gate import Decision, Outcome, PermissionGate, Reason, refusal
from b4run.permissions.grants import Grant, GrantNotRecorded, GrantScope, GrantStore, MemoryGrantStore
from b4run.permissions.requests import (
    CommandRequest,
    PathRequest,
    Request,
    SubagentRequest,
    ToolRequest,
    always_means,
    interrupt_payload,
)
from b4run.permissions.rules import Key, PermissionMode, RuleLists, ThreadRules, mode_in_force, read_rules, rule_fault

__all__ = [
    "CommandRequest",
    "Decision",
    "Grant",
    "GrantNotRecorded",
    "GrantScope",
    "GrantStore",
    "Key",
    "MemoryGrantStore",
    "Outcome",
    "PathRequest",
    "PermissionGate",
    "PermissionMode",
    "Reason",
    "Request",
    "RuleLists",
    "SubagentRequest",
    "ThreadRules",
    "ToolRequest",
    "always_means",
    "interrupt_payload",
    "mode_in_force",
    "read_rules",
    "refusal",
    "rule_fault",
]
