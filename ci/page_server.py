"""The built book on a port of this machine, served as GitHub Pages serves it: compressed, cached, below a path."""

from __future__ import annotations

import functools
import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlparse

# What Pages compresses, and for how long browsers may keep a file without asking.
COMPRESSED = (".html", ".css", ".js", ".json", ".svg", ".xml", ".txt", ".inv")
SECONDS = 600
# Compressing is not worth it for less.
_SMALLEST = 1000


class Handler(SimpleHTTPRequestHandler):
    """Files of one folder below one path; what is not there is answered with 404.html."""

    protocol_version = "HTTP/1.1"

    def __init__(self, *arguments, directory: str, base: str, **options) -> None:
        self.base = base
        super().__init__(*arguments, directory=directory, **options)

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def log_message(self, *_: object) -> None:
        """One line for every file of every page would bury the faults."""

    def _answer(self, body: bool) -> None:
        path, status = self._find(), HTTPStatus.OK
        if path is None:
            path, status = Path(self.directory, "404.html"), HTTPStatus.NOT_FOUND
        data = path.read_bytes() if path.is_file() else b"not found"
        packed = path.suffix in COMPRESSED and len(data) >= _SMALLEST
        packed = packed and "gzip" in self.headers.get("Accept-Encoding", "")
        if packed:
            data = _compress(path, path.stat().st_mtime_ns)
        self.send_response(status)
        kind = self.guess_type(str(path))
        text = kind.startswith("text/") or path.suffix == ".js"
        self.send_header("Content-Type", f"{kind}; charset=utf-8" if text else kind)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", f"max-age={SECONDS}")
        if path.is_file():
            self.send_header("Last-Modified", formatdate(path.stat().st_mtime, usegmt=True))
        if packed:
            self.send_header("Content-Encoding", "gzip")
            self.send_header("Vary", "Accept-Encoding")
        self.end_headers()
        if body:
            self.wfile.write(data)

    def _find(self) -> Path | None:
        address = unquote(urlparse(self.path).path)
        if not address.startswith(self.base):
            return None
        root = Path(self.directory).resolve()
        path = (root / address.removeprefix(self.base)).resolve()
        if path.is_dir():
            path /= "index.html"
        return path if path.is_file() and root in path.parents else None


@functools.lru_cache(maxsize=256)
def _compress(path: Path, _changed: int) -> bytes:
    return gzip.compress(path.read_bytes(), 6)


class _Server(ThreadingHTTPServer):
    # Two browsers ask for dozens of files at once; whom a short queue turns away asks again a second later.
    request_queue_size = 128


@contextmanager
def serve(folder: Path, base: str = "/") -> Iterator[str]:
    """The folder on a free port; yields its address without the last slash.

    Args:
        base: the path that the folder stands below, such as `/ds41/`.
    """
    handler = functools.partial(Handler, directory=str(folder), base=base)
    server = _Server(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}{base.rstrip('/')}"
    finally:
        server.shutdown()
        server.server_close()
