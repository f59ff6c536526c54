# SPDX-License-Identifier: Apache-2.0
"""A server with a page, as a process, and what its tests ask of it."""
import hashlib
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

SERVER, CLI = os.environ["INTRAWARPD"], os.environ["INTRAWARP_CLI"]


class Server:
    """intrawarpd on free ports; `page` may be a port of before."""

    def __init__(self, *flags, page="127.0.0.1:0"):
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [SERVER, "--listen=127.0.0.1:0", "--http=127.0.0.1:0", f"--page={page}", "--device=cpu", *flags],
            stdout=subprocess.PIPE, stderr=self.log, text=True)
        ready = self.process.stdout.readline()
        self.log.seek(0)
        assert ready.startswith("ready "), self.log.read()
        self.grpc = re.search(r"grpc=(\S+)", ready)[1]
        self.page = re.search(r"page=(\S+)/", ready)[1]
        self.address = self.page.split("//")[1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self, how=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(how)
            self.process.wait(30)
        self.process.stdout.close()
        self.log.close()

    def resident_kib(self):
        with open(f"/proc/{self.process.pid}/status") as status:
            return int(re.search(r"VmRSS:\s+(\d+)", status.read())[1])


def load(server, *flags, size=32):
    """Sessions of breathing phantoms, until the process is ended."""
    return subprocess.Popen([CLI, f"--server={server.grpc}", "bench", f"--size={size}", "--method=affine", "--seconds=600", *flags],
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def unverified():
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def first_bytes(answer):
    return answer.read1(1 << 20)


def ask(server, path, token=None, method="GET", headers=None, data=None, read=first_bytes):
    """(status, body) of a request; of a stream only what `read` takes."""
    request = urllib.request.Request(server.page + path, method=method, headers=dict(headers or {}), data=data)
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=20, context=unverified()) as answer:
            return answer.status, read(answer)
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def state(server, token=None):
    """The first line of the state."""
    status, line = ask(server, "/api/state", token, read=lambda answer: answer.readline())
    assert status == 200, (status, line)
    return json.loads(line)


def wait_for_session(server, token=None, with_frame=True):
    for _ in range(600):
        sessions = state(server, token)["sessions"]
        if sessions and (sessions[0]["frames"] or not with_frame):
            return sessions[0]
        time.sleep(0.2)
    raise AssertionError("no session came")


def half_open(address, path):
    """A connection that asks for a stream and reads nothing."""
    host, port = address.split(":")
    connection = socket.create_connection((host, int(port)))
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
    return connection


def token_line(name, roles):
    token = hashlib.sha256(f"{name} {roles}".encode()).hexdigest()
    return token, f"{name} {roles} sha256:{hashlib.sha256(token.encode()).hexdigest()}"
