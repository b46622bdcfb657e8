"""Which file system a path lies on: where a lock fences nobody and a sync promises nothing, no log is kept."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

NETWORK_FILE_SYSTEMS: Final = frozenset(
    {
        "afs", "beegfs", "ceph", "cifs", "coda", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2",
        "orangefs", "smb2", "smb3", "smbfs",
        "fuse.ceph", "fuse.gcsfuse", "fuse.glusterfs", "fuse.juicefs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs",
    }
)  # fmt: skip
"""Where a lock does not fence other machines, or a sync is no promise of the disk's."""


def read_mounts() -> str:
    """Linux's table of mounts; empty where there is none."""
    try:
        return Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape")
    except FileNotFoundError:
        return ""


def file_system(path: str, mounts: str) -> str | None:
    """The type of the file system that a real path lies on, by Linux's table of mounts; None if it does not say."""
    found, longest = None, 0
    for row in mounts.split("\n"):
        fields, _, source = row.partition(" - ")
        columns = fields.split(" ")
        if len(columns) > 4 and source:  # noqa: PLR2004 - the fifth column is the mount point
            point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), columns[4])
            inside = path == point or path.startswith(point.rstrip("/") + "/")
            # Of two mounts on one point the later hides the earlier.
            if inside and len(point) >= longest:
                found, longest = source.split(" ")[0], len(point)
    return found
