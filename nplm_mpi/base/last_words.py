"""What a rank says before it ends is read before the launcher throws it away."""

import array
import contextlib
import fcntl
import os
import stat
import termios
import time
from typing import TextIO

# A failing rank waits so long, at most, for its last words to be read, and then for them to
# travel on through the launcher's own processes.
READ_SECONDS = 3.0
PASSED_ON_SECONDS = 0.2


def wait_until_read(stream: TextIO) -> None:
    """Wait until the launcher has taken what was written to a pipe, a few seconds at most.

    A launcher that is told to end all ranks may drop what it has not read yet, and that
    is the reason why they end.
    """
    until = time.monotonic() + READ_SECONDS
    unread = array.array("i", [1])
    with contextlib.suppress(OSError, ValueError):  # a closed stream
        while stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode) and time.monotonic() < until:
            fcntl.ioctl(stream.fileno(), termios.FIONREAD, unread)
            if not unread[0]:
                break
            time.sleep(0.01)
    time.sleep(PASSED_ON_SECONDS)
