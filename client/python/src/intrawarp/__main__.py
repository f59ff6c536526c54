# SPDX-License-Identifier: Apache-2.0
"""python -m intrawarp selftest HOST:PORT: asks a running server for things whose answers are known.

It uploads a phantom, downloads it, registers it, and compares points, fields and images with the truth; it opens a
session and streams frames. Everything that it makes is deleted. The exit status is 0 when every check holds, 1 when one
fails, and 2 for a wrong command line. It must not run beside patients' sessions.
"""
import argparse
import os
import sys
import time
from typing import Any, Callable, List, Tuple

import numpy as np

from . import _crc32c, connect
from ._sync import Server
from ._version import __version__
from .errors import IntrawarpError
from .testing import phantom


class CheckFailed(Exception):
    """What was expected, and what came."""


def expect(what: str, value: float, most: float) -> str:
    """The figure for the report. CheckFailed when it is above `most`, or not a number."""
    if not value <= most:
        raise CheckFailed(f"{what} is {value:.3g}, must be at most {most:.3g}")
    return f"{what} {value:.3g}"


class SelfTest:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._pair = phantom((48, 44, 40), (3.0, 3.0, 3.0), bend_mm=0.0)

    def checks(self) -> List[Tuple[str, Callable[[], str]]]:
        return [
            ("server", self.server),
            ("volumes", self.volumes),
            ("registration", self.registration),
            ("points and fields", self.points),
            ("warp", self.warp),
            ("session", self.session),
        ]

    def server(self) -> str:
        info = self._server.info()
        if not self._server.is_serving():
            raise CheckFailed("the server does not serve")
        return f"{info.version} on {info.devices[0].name}" if info.devices else info.version

    def volumes(self) -> str:
        self._fixed = self._server.put(self._pair.fixed)
        self._moving = self._server.put(self._pair.moving)
        back = self._fixed.download()
        if back.geometry != self._pair.fixed.geometry:
            raise CheckFailed("the grid that came back is another one")
        return expect("largest difference of a voxel", float(np.abs(back.array - self._pair.fixed.array).max()), 0.0)

    def registration(self) -> str:
        self._result = self._server.register(self._fixed, self._moving, method="rigid")
        error = np.linalg.norm(self._result.map_points(self._pair.points) - self._pair.moving_points, axis=1)
        return expect("largest error, mm,", float(error.max()), 1.0) + f", verdict {self._result.verdict}"

    def points(self) -> str:
        there = self._result.map_points(self._pair.points)
        here = self._result.field("float32").map_points(self._pair.points)
        back = self._result.inverse_points(there)
        return ", ".join(
            (
                expect("field against server, mm,", float(np.abs(here - there).max()), 0.01),
                expect("there and back, mm,", float(np.abs(back - self._pair.points).max()), 0.01),
            )
        )

    def warp(self) -> str:
        inner = (slice(8, -8),) * 3
        before = np.abs(self._pair.moving.array[inner].astype(float) - self._pair.fixed.array[inner]).mean()
        after = np.abs(self._result.warped().array[inner] - self._pair.fixed.array[inner]).mean()
        return expect("difference after against before", float(after / before), 0.5)

    def session(self) -> str:
        answers: List[Any] = []
        with self._server.navigate(fixed=self._fixed, method="rigid", iterations=5, levels=1, field="int16") as session:
            for _ in range(3):
                session.send(self._pair.moving)
                answers.append(session.receive(timeout=120.0))
            failed = [answer for answer in answers if answer is None or answer.error is not None]
            if failed:
                raise CheckFailed(f"a frame failed: {failed[0] and failed[0].error}")
            here = session.map_points(self._pair.points).points
            there = self._server.map_points(answers[-1].transform, self._pair.points)
            way = "shared memory" if session.shares_memory else "the connection"
        return expect("field against server, mm,", float(np.abs(here - there).max()), 0.05) + f", by {way}"


def self_test(server: Server) -> int:
    failed = 0
    for name, check in SelfTest(server).checks():
        begin = time.monotonic()
        try:
            print(f"ok    {name}: {check()} ({time.monotonic() - begin:.2f} s)", flush=True)
        except (CheckFailed, IntrawarpError) as error:
            failed += 1
            print(f"FAIL  {name}: {error}", flush=True)
            if name in ("server", "volumes", "registration"):
                break  # the others need it
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m intrawarp", description="The client of intrawarpd.")
    parser.add_argument("--version", action="version", version=f"{__version__} (CRC32C by {_crc32c.IMPLEMENTATION})")
    commands = parser.add_subparsers(dest="command", required=True)
    test = commands.add_parser("selftest", help="ask a running server for things whose answers are known")
    test.add_argument(
        "address", nargs="?", default=None, help="HOST:PORT; otherwise the environment's INTRAWARP_SERVER"
    )
    for name in ("tls_ca", "tls_cert", "tls_key", "token_file"):
        test.add_argument(f"--{name}", default=None, metavar="PATH")
    options = parser.parse_args()
    if not (options.address or os.environ.get("INTRAWARP_SERVER")):
        parser.error("give HOST:PORT, or set INTRAWARP_SERVER")
    try:
        with connect(
            options.address,
            tls_ca=options.tls_ca,
            tls_cert=options.tls_cert,
            tls_key=options.tls_key,
            token_file=options.token_file,
        ) as server:
            return self_test(server)
    except (IntrawarpError, OSError) as error:
        print(f"intrawarp: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
