"""A web server on this machine, an empty cache, and the real data where there are any."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest


@dataclass
class Site:
    """Serves ``files``; those in ``cut`` announce their whole length and stop half way."""

    url: str
    files: dict[str, bytes] = field(default_factory=dict)
    cut: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def site() -> Iterator[Site]:
    """Run a server on a free port of 127.0.0.1 for one test."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.lstrip("/")
            here.asked.append(name)
            body = here.files.get(name)
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            sent = body or b""
            self.wfile.write(sent[: len(sent) // 2] if name in here.cut else sent)

        def log_message(self, format: str, *args: object) -> None:
            """Keep the test output clean."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    here = Site(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield here
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty cache folder, with no data folder set."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("BAYESRULE_CACHE", str(folder))
    monkeypatch.delenv("BAYESRULE_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "*")
    return folder


@pytest.fixture
def real_data() -> Path:
    """Return the folder of the real data sets, or skip."""
    named = os.environ.get("BAYESRULE_DATA")
    if not named:
        pytest.skip("BAYESRULE_DATA is not set")
    return Path(named)
