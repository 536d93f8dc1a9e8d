"""A Schema Registry with as much of the real one as the example needs: a schema for each number, over HTTP on loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["registry"]


@contextmanager
def registry(schemas: Mapping[int, dict[str, Any]]) -> Iterator[str]:
    """Answer ``GET /schemas/ids/NUMBER`` at the URL that is given to the block, until its end."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            start, _, number = self.path.rpartition("/")
            found = schemas.get(int(number)) if start == "/schemas/ids" and number.isdigit() else None
            body = json.dumps({"schema": json.dumps(found)} if found else {"error_code": 40403, "message": "not found"})
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
