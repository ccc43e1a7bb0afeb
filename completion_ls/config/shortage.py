"""What the system says, as numbers of an OSError, where something has run out."""

from __future__ import annotations

import errno

DISK = (errno.ENOSPC, errno.EDQUOT)
"""Of a full disk or quota."""
DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
"""Where a process, or the system, has too many files and sockets open."""
