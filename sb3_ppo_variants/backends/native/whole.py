"""The length that the file of the library must have.

The system maps a file that was cut short, for example by a full disk, without an error. The process then dies of SIGBUS
once it touches a page that is missing. On Linux, the headers of the file tell how long it must be. The loaders of macOS
and Windows check it themselves.
"""

import struct
from pathlib import Path

# The first bytes of 64-bit ELF files in little-endian order.
MAGIC = b"\x7fELF\x02\x01"
# The header up to and with the counts: magic numbers, then, after 16 bytes, the offsets of the two tables, and their
# entries' sizes and counts.
HEADER = struct.Struct("<32xQQ6xHHHH")
# An entry of the table of segments: offset and size in the file.
SEGMENT = struct.Struct("<8xQ16xQ")


def check_length(path: Path) -> None:
    """Check that a file is as long as its headers say, if it is in the format of Linux.

    :raises OSError: if it is shorter
    """
    content = path.read_bytes()
    if content.startswith(MAGIC) and len(content) < (needed := _needed(content)):
        raise OSError(f"it has {len(content):,} bytes instead of at least {needed:,}")


def _needed(content: bytes) -> int:
    """Return the end of what the headers of a file describe, or of the headers that are missing."""
    try:
        segments, sections, segment_size, n_segments, section_size, n_sections = HEADER.unpack_from(content)
        ends = [sections + section_size * n_sections]
        for i in range(n_segments):
            offset, size = SEGMENT.unpack_from(content, segments + segment_size * i)
            ends.append(offset + size)
        return max(ends)
    except struct.error:
        return len(content) + 1
