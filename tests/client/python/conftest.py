# SPDX-License-Identifier: Apache-2.0
"""Fixtures: a phantom pair, and a real server where INTRAWARPD names the program."""
import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "client" / "python"
sys.path.insert(0, str(PACKAGE / "src"))

import intrawarp  # noqa: E402


class RealServer:
    """An intrawarpd on a free port of 127.0.0.1."""

    def __init__(self, folder, *flags, listen="127.0.0.1:0"):
        self.socket = str(folder / "shared_memory.sock")
        self.log = open(folder / "log", "wb")
        self._process = subprocess.Popen(
            [
                os.environ["INTRAWARPD"],
                f"--listen={listen}",
                "--http=127.0.0.1:0",
                "--device=cpu",
                f"--shared_memory={self.socket}",
                "--log_level=warning",
                "--resident_bytes=512MiB",
                "--workspace_bytes=1GiB",
                "--pinned_bytes=512MiB",
                *flags,
            ],
            stdout=subprocess.PIPE,
            stderr=self.log,
        )
        line = self._process.stdout.readline().decode()
        assert line.startswith("ready "), (folder / "log").read_text()
        self.address = line.split("grpc=")[1].split()[0]

    def stop(self, sig=signal.SIGTERM):
        if self._process.poll() is None:
            self._process.send_signal(sig)
        self._process.wait(30)
        self._process.stdout.close()
        self.log.close()


@pytest.fixture(scope="session")
def real(tmp_path_factory):
    """The address of an intrawarpd that all tests share."""
    if "INTRAWARPD" not in os.environ:
        pytest.fail("INTRAWARPD must name the server's program")
    server = RealServer(tmp_path_factory.mktemp("intrawarpd"))
    yield server.address
    server.stop()


@pytest.fixture(scope="session")
def pair():
    """Two images of one blob, the second one moved by 2 mm along each axis: T(p) = p + 2."""
    size, spacing = (24, 22, 20), 2.0
    axes = [spacing * np.arange(n) for n in size]
    z, y, x = np.meshgrid(axes[2], axes[1], axes[0], indexing="ij")

    def blobs(shift):
        out = np.zeros(z.shape)
        for cx, cy, cz, width, height in ((20, 20, 20, 8, 900), (32, 16, 24, 5, 600), (14, 28, 14, 5, -300)):
            out += height * np.exp(
                -((x - cx - shift) ** 2 + (y - cy - shift) ** 2 + (z - cz - shift) ** 2) / (2 * width**2)
            )
        return out.astype(np.int16)

    keys = {"axes": "zyx", "space": "LPS", "spacing_xyz": (spacing,) * 3, "origin_xyz": (-20.0, -15.0, 30.0)}
    return intrawarp.Image(blobs(0.0), **keys), intrawarp.Image(blobs(2.0), **keys)
