"""Pictures as files: whole ones, and one that claims to be larger than it is."""

from __future__ import annotations

import base64
import io
import struct
import zlib

from PIL import Image


def png(width: int, height: int) -> bytes:
    """A picture of one colour."""
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), (200, 30, 30)).save(buffer, "PNG")
    return buffer.getvalue()


def bomb(side: int = 60_000) -> bytes:
    """A PNG of a few hundred bytes whose header says side x side pixels."""
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(bytes(2**16), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )


def data_url(picture: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(picture).decode()}"
