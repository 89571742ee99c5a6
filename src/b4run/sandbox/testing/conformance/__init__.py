"""The cases, one module a group. They speak only `/bin/sh` and what busybox has too."""
