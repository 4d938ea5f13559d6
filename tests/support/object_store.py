"""A small object store of the S3 protocol in memory: what delta-rs asks of one, with conditional puts.

``DRIFTLINE_TEST_S3=http://host:port`` takes another server instead (MinIO, moto, ...); its bucket "driftline"
must exist. Signatures are not checked.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

BUCKET = "driftline"


class Objects:
    """The objects, by name, with the time of the last write."""

    def __init__(self) -> None:
        self.all: dict[str, tuple[bytes, float]] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        """Of uploads that are not complete yet."""
        self.lock = threading.Lock()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # head and body in one packet
    objects: Objects

    def log_message(self, *_: Any) -> None:
        pass

    def _split(self) -> tuple[str, dict[str, list[str]]]:
        parts = urlsplit(self.path)
        key = unquote(parts.path).removeprefix(f"/{BUCKET}").lstrip("/")
        return key, parse_qs(parts.query, keep_blank_values=True)

    def _answer(self, code: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # whoever asked may have gone
            self.wfile.write(b"" if self.command == "HEAD" else body)
            self.wfile.flush()

    def do_PUT(self) -> None:
        key, query = self._split()
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with self.objects.lock:
            if "uploadId" in query:
                self.objects.parts[query["uploadId"][0]][int(query["partNumber"][0])] = body
                self._answer(200, ETag=_etag(body))
                return
            if self.headers.get("If-None-Match") == "*" and key in self.objects.all:
                self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
                return
            copied = self.headers.get("x-amz-copy-source")
            if copied is not None:
                body = self.objects.all[
                    unquote(copied).removeprefix(f"/{BUCKET}/").removeprefix(f"{BUCKET}/")
                ][0]
            self.objects.all[key] = (body, time.time())
        text = f"<CopyObjectResult><ETag>{escape(_etag(body))}</ETag></CopyObjectResult>" if copied else ""
        self._answer(200, text.encode(), ETag=_etag(body))

    def do_GET(self) -> None:
        key, query = self._split()
        if not key:
            self._list(query)
            return
        found = self.objects.all.get(key)
        if found is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        body, at = found
        headers = {
            "ETag": _etag(body),
            "Last_Modified": formatdate(at, usegmt=True),
            "Accept_Ranges": "bytes",
        }
        if wanted := re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", "")):
            first, last = wanted[1], wanted[2]
            start = int(first) if first else max(0, len(body) - int(last))
            end = min(len(body) - 1, int(last)) if first and last else len(body) - 1
            part = body[start : end + 1]
            self._answer(206, part, Content_Range=f"bytes {start}-{end}/{len(body)}", **headers)
        elif self.command == "HEAD":
            self._answer(200, b"", Content_Length=str(len(body)), **headers)
        else:
            self._answer(200, body, **headers)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_DELETE(self) -> None:
        key, query = self._split()
        with self.objects.lock:
            if "uploadId" in query:
                self.objects.parts.pop(query["uploadId"][0], None)
            else:
                self.objects.all.pop(key, None)
        self._answer(204)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        key, query = self._split()
        if "uploads" in query or "uploadId" in query:
            self._upload(key, query)
            return
        keys = re.findall(r"<Key>(.*?)</Key>", body)
        with self.objects.lock:
            for key in keys:
                self.objects.all.pop(key, None)
        done = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
        self._answer(200, f"<DeleteResult>{done}</DeleteResult>".encode())

    def _upload(self, key: str, query: dict[str, list[str]]) -> None:
        """Begins or completes an upload in parts."""
        with self.objects.lock:
            if "uploads" in query:
                upload = str(uuid.uuid4())
                self.objects.parts[upload] = {}
                text = f"<UploadId>{upload}</UploadId>"
                text = f"<InitiateMultipartUploadResult>{text}</InitiateMultipartUploadResult>"
            else:
                parts = self.objects.parts.pop(query["uploadId"][0])
                body = b"".join(parts[number] for number in sorted(parts))
                self.objects.all[key] = (body, time.time())
                text = f"<ETag>{escape(_etag(body))}</ETag>"
                text = f"<CompleteMultipartUploadResult>{text}</CompleteMultipartUploadResult>"
        self._answer(200, text.encode())

    def _list(self, query: dict[str, list[str]]) -> None:
        prefix = query.get("prefix", [""])[0]
        after = query.get("start-after", [""])[0]
        delimiter = query.get("delimiter", [""])[0]
        with self.objects.lock:
            keys = sorted(key for key in self.objects.all if key.startswith(prefix) and key > after)
            listed = [(key, *self.objects.all[key]) for key in keys]
        folders, files = set(), []
        for key, body, at in listed:
            rest = key[len(prefix) :]
            if delimiter and delimiter in rest:
                folders.add(prefix + rest.split(delimiter)[0] + delimiter)
                continue
            when = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(at))
            files.append(
                f"<Contents><Key>{escape(key)}</Key><LastModified>{when}</LastModified>"
                f"<ETag>{escape(_etag(body))}</ETag><Size>{len(body)}</Size></Contents>"
            )
        common = "".join(
            f"<CommonPrefixes><Prefix>{escape(f)}</Prefix></CommonPrefixes>" for f in sorted(folders)
        )
        text = (
            f"<ListBucketResult><Name>{BUCKET}</Name><IsTruncated>false</IsTruncated>"
            f"{''.join(files)}{common}</ListBucketResult>"
        )
        self._answer(200, text.encode(), Content_Type="application/xml")


def _etag(body: bytes) -> str:
    return f'"{hashlib.md5(body).hexdigest()}"'


def _serve() -> None:
    handler = type("Handler", (_Handler,), {"objects": Objects()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    print(server.server_address[1], flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    server.serve_forever()


class ObjectStore:
    """A server on a free port of this host, in a process of its own: delta-rs keeps Python's lock while it
    waits for an answer, so a server in the same process could never give one. It ends with us."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen([sys.executable, __file__], stdin=pipe, stdout=pipe, text=True)
        assert self._process.stdout is not None
        self.endpoint = f"http://127.0.0.1:{int(self._process.stdout.readline())}"

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


SECRET = "very-secret-key"


@contextlib.contextmanager
def object_root(patch: Any) -> Iterator[str]:
    """An address that nothing lies under, until the block ends; ``patch``: a MonkeyPatch."""
    server = None if os.environ.get("DRIFTLINE_TEST_S3") else ObjectStore()
    environment = {
        "AWS_ENDPOINT_URL": server.endpoint if server else os.environ["DRIFTLINE_TEST_S3"],
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }
    for name, value in environment.items():
        patch.setenv(name, value)
    with contextlib.closing(server) if server else contextlib.nullcontext():
        yield f"s3://{BUCKET}/{uuid.uuid4()}"


if __name__ == "__main__":
    _serve()
