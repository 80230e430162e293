"""Binary PPM images in plain Python: slow, without dependencies, and good enough to watch a job make progress."""

from __future__ import annotations

import re
from collections.abc import Callable

HEAD = re.compile(rb"P6\s+(\d+)\s+(\d+)\s+255\s")
PIXEL_BYTES = 3


class NotAnImage(ValueError):
    """Trying again will not help."""


def shrunk(image: bytes, width: int, row_done: Callable[[float], None]) -> bytes:
    """The image at that width, by the nearest pixel; `row_done` gets the fraction done after each row."""
    head = HEAD.match(image)
    if head is None:
        raise NotAnImage("this is not a binary PPM image with 255 shades")
    old_width, old_height = int(head[1]), int(head[2])
    pixels = image[head.end() :]
    if len(pixels) < old_width * old_height * PIXEL_BYTES or not old_width or not old_height:
        raise NotAnImage("this image is shorter than it says")
    width = max(1, min(width, old_width))
    height = max(1, old_height * width // old_width)
    rows: list[bytes] = []
    for y in range(height):
        begin = (y * old_height // height) * old_width
        places = (begin + x * old_width // width for x in range(width))
        rows.append(b"".join(pixels[place * PIXEL_BYTES : (place + 1) * PIXEL_BYTES] for place in places))
        row_done((y + 1) / height)
    return b"P6\n%d %d\n255\n" % (width, height) + b"".join(rows)
