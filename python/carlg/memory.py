"""The same buffers are needed in every epoch: keep them in the process instead of fetching fresh pages from the kernel each time."""

import ctypes
import functools
import sys

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4


@functools.cache
def keep_freed_memory() -> bool:
    """Make glibc keep large freed blocks; whether it does. An epoch writes some twenty matrices of n rows, and first touches cost as
    much as the arithmetic on them. Holes between kept blocks raise the peak,
    so this is for graphs with room to spare. Other C libraries are left as they are.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(set_option(_MMAP_MAX, 0)) and bool(set_option(_TRIM_THRESHOLD, 2**31 - 1))
