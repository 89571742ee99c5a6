"""Builds the guest with cargo and puts it into the wheel (and into the source tree, for an editable install).

`B4_GUEST_TARGETS` names Rust targets, separated by spaces (default: this host's), such as `x86_64-unknown-linux-gnu`.
`python hatch_build.py` builds the guest alone.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # `python hatch_build.py` needs no build backend
    BuildHookInterface = object

ROOT = Path(__file__).resolve().parent
CRATE = ROOT / "guest"
PLACE = ROOT / "src" / "b4run" / "_guest"

NO_CARGO = """\
b4run needs Rust to build its guest, the small program that runs inside every sandbox, and `cargo` was not found.
  Install Rust 1.88 or newer with rustup (https://rustup.rs).
  A C linker is needed too: `apt-get install gcc libc6-dev`.
"""


class GuestHook(BuildHookInterface):  # type: ignore[type-arg, misc, unused-ignore]
    """Runs before the wheel is put together."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        binaries = build_guests()
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        if version != "editable":
            build_data["force_include"].update({str(binary): f"b4run/_guest/{binary.name}" for binary in binaries})


def host_target() -> str:
    return f"{platform.machine()}-unknown-linux-gnu"


def build_guests() -> list[Path]:
    """Build every asked-for target; return the installed binaries."""
    targets = os.environ.get("B4_GUEST_TARGETS", "").split() or [host_target()]
    if shutil.which("cargo") is None:
        raise SystemExit(NO_CARGO)
    return [build_guest(target) for target in targets]


def build_guest(target: str) -> Path:
    """Build one target (cargo skips what is up to date) and replace the installed binary in one step."""
    command = ["cargo", "build", "--release", "--locked", "--manifest-path", str(CRATE / "Cargo.toml"), "--target", target]
    if subprocess.run(command, cwd=CRATE, check=False).returncode != 0:
        raise SystemExit(f"cargo could not build the guest for {target}; what it said stands above")
    PLACE.mkdir(exist_ok=True)
    installed = PLACE / f"b4-guest-{target.partition('-')[0]}-linux"
    fresh = installed.with_name(f".{installed.name}.new")
    shutil.copy2(CRATE / "target" / target / "release" / "b4-guest", fresh)
    fresh.replace(installed)
    return installed


if __name__ == "__main__":
    for path in build_guests():
        sys.stdout.write(f"{path.relative_to(ROOT)}\n")
