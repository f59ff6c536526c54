# SPDX-License-Identifier: Apache-2.0
"""The page's files and a server's answers that a test writes: states that no real server can be brought to at will."""
import http.server
import json
import pathlib
import struct
import threading
import time
import urllib.parse

ASSETS = pathlib.Path(__file__).resolve().parents[3] / "server" / "page" / "assets"
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
GRID = {"size": [8, 8, 8], "to_lps": [4, 0, 0, 0, 0, 4, 0, 0, 0, 0, 4, 0]}
LINES_PAUSE = 0.2


def padded(data):
    return data + bytes(-len(data) % 8)


def packet(head, **parts):
    """server/page/packet.h draws one."""
    text = json.dumps({**head, "parts": [[name, len(data)] for name, data in parts.items()]}).encode()
    rest = padded(bytes(16) + text)[16:] + b"".join(padded(data) for data in parts.values())
    return struct.pack("<IId", 12 + len(rest), len(text), time.monotonic()) + rest


def image(role):
    voxels = struct.pack("<512h", *range(512))
    return {"grid": GRID, "type": "i16", "slope": 1, "intercept": 0, "window": [0, 512], "role": role}, voxels


def answered(number, total_ms=50.0, fate="ok"):
    """A frame as the state tells it."""
    return {"number": number, "answered": float(number), "total_ms": total_ms, "limit_ms": 2 * total_ms, "fate": fate,
            "verdict": "ok", "phases_ms": {"stage": 0.9 * total_ms, "answer": 0.1 * total_ms}}


def session(name, state="ACTIVE", frames=(), **rest):
    return {"id": name, "owner": "", "state": state, "device": "gpu:0", "method": "affine", "resident": "volumes/one",
            "resident_is_fixed": True, "rate_hz": 0.1, "p50_ms": None, "p99_ms": None, "frames": list(frames), "tip": None,
            "counts": {"ok": 1, "late": 0, "missed": 0, "superseded": 0, "refused": 0, "failed": 0, "dropped": 0}, **rest}


class ScriptedPage:
    """`sessions`, `devices`, `latency_ms`, `token` (empty: nobody is asked for one), `caller` and `refusals` (a status and
    a text for "frames" or "reference") may change at any time."""

    def __init__(self):
        self.sessions = []
        self.devices = [{"name": "gpu:0", "model": "one", "state": "well", "memory_total": 1 << 34, "memory_free": 1 << 33,
                         "waiting": 0}]
        self.memory = [{"name": "resident", "in_use": 1 << 20, "capacity": 1 << 30}]
        self.latency_ms = 50.0
        self.token = ""
        self.caller = ""
        self.refusals = {}
        self.pictures = True
        self._stopped = threading.Event()
        script = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                url = urllib.parse.urlsplit(self.path)
                script._answer(self, url.path, urllib.parse.parse_qs(url.query, keep_blank_values=True))

            def log_message(self, *_):
                pass

        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.page = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever)
        self._thread.start()

    def stop(self):
        self._stopped.set()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def _admits(self, request):
        return not self.token or request.headers.get("Authorization") == f"Bearer {self.token}"

    def _find(self, name, owner):
        """The sessions with this id; of the owner, unless that is None."""
        return [each for each in self.sessions if each["id"] == name and owner in (None, each["owner"])]

    def _answer(self, request, path, query):
        parts = path.strip("/").split("/")
        if parts[0] != "api":
            return self._send_asset(request, parts[0] or "index.html")
        if not self._admits(request):
            return self._send(request, 401, "text/plain", b"no token\n")
        if parts[1] == "state":
            return self._stream(request, self._lines())
        owner = query.get("owner", [None])[0]
        if not self._find(parts[2], owner):
            return self._send(request, 404, "text/plain", b"not found\n")
        if len(self._find(parts[2], owner)) > 1:
            return self._send(request, 409, "text/plain", b"several owners\n")
        if parts[3] in self.refusals:
            status, text = self.refusals[parts[3]]
            return self._send(request, status, "text/plain", text.encode())
        if parts[3] == "reference":
            head, voxels = image("fixed")
            return self._send(request, 200, "application/octet-stream", packet({"image": head}, image=voxels))
        return self._stream(request, self._pictures(parts[2], owner))

    def _send(self, request, status, content_type, body):
        request.send_response(status)
        request.send_header("Content-Type", content_type)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    def _send_asset(self, request, name):
        file = ASSETS / name
        if file.is_file():
            self._send(request, 200, TYPES[file.suffix], file.read_bytes())
        else:
            self._send(request, 404, "text/plain", b"not found\n")

    def _stream(self, request, pieces):
        request.send_response(200)
        request.send_header("Content-Type", "application/octet-stream")
        request.end_headers()
        try:
            for piece in pieces:
                request.wfile.write(piece)
                request.wfile.flush()
                if self._stopped.wait(LINES_PAUSE) or not self._admits(request):
                    return
        except OSError:
            pass  # the viewer left

    def _lines(self):
        """A viewer is told each frame once."""
        told = {}
        while True:
            sessions = []
            for each in list(self.sessions):
                key = (each["id"], each["owner"])
                fresh = [frame for frame in each["frames"] if frame["number"] > told.get(key, 0)]
                told[key] = max([frame["number"] for frame in fresh], default=told.get(key, 0))
                sessions.append({**each, "frames": fresh})
            line = {"now": time.monotonic(), "version": "0", "caller": self.caller, "devices": self.devices, "memory": self.memory,
                    "sessions": sessions}
            yield json.dumps(line).encode() + b"\n"

    def _pictures(self, name, owner):
        number = 0
        while found := self._find(name, owner):
            number = found[0].get("picture", number + 1)
            head, voxels = image("moving")
            yield packet({"frame": number, "begin": time.monotonic(), "latency_ms": self.latency_ms, "fate": "ok", "verdict": "ok",
                          "reasons": [], "fixed": GRID, "image": head}, image=voxels) if self.pictures else packet({})
