"""A server on the loopback that gives one file the way servers on a bad day do."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from kvrm_traces.datasets import Dataset


@dataclasses.dataclass
class Served:
    """``cut_after``: bytes of a body, a request, after which the connection is closed; None: never. ``statuses``: what
    is answered before the file is given. ``asked``: the Range header of each request.
    """

    body: bytes
    address: str = ""
    etag: str | None = '"one"'
    ranges: bool = True
    states_length: bool = True
    cut_after: list[int | None] = dataclasses.field(default_factory=list)
    statuses: list[int] = dataclasses.field(default_factory=list)
    asked: list[str | None] = dataclasses.field(default_factory=list)

    def dataset(self, **fields: object) -> Dataset:
        """The file as a data set."""
        known: dict[str, object] = {"about": "a file", "licence": "none", "page": "nowhere", "file": "t.csv"}
        known |= {"addresses": (self.address,), "unchecked": "made up"}
        return Dataset(name="made-up", **{**known, **fields})  # type: ignore[arg-type]  # fields by name


@contextmanager
def serving(body: bytes) -> Iterator[Served]:
    """The file at ``address`` until the end of the block."""
    served = Served(body)

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:  # the name that the server looks for
            served.asked.append(self.headers.get("Range"))
            if served.statuses:
                self.send_error(served.statuses.pop(0))
                return
            self._give()

        def _give(self) -> None:
            begin = 0
            wanted = self.headers.get("Range")
            fresh = self.headers.get("If-Range") in (None, served.etag)
            if wanted is not None and served.ranges and fresh:
                begin = int(wanted.removeprefix("bytes=").rstrip("-"))
                if begin >= len(served.body):
                    self.send_error(416)
                    return
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {begin}-{len(served.body) - 1}/{len(served.body)}")
            else:
                self.send_response(200)
            if served.etag is not None:
                self.send_header("ETag", served.etag)
            if served.states_length:
                self.send_header("Content-Length", str(len(served.body) - begin))
            self.end_headers()
            cut = served.cut_after.pop(0) if served.cut_after else None
            self.wfile.write(served.body[begin:] if cut is None else served.body[begin : begin + cut])

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served.address = f"http://127.0.0.1:{server.server_address[1]}/t.csv"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
