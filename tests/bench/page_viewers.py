#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Latencies of the frames of four sessions with 0, 1 and 16 viewers of the page, who read as fast as they can.

    INTRAWARPD=PATH INTRAWARP_CLI=PATH tests/bench/page_viewers.py [--size=N] [--rate=HZ] [--seconds=S] [--rounds=N]
        [--method=M] [--device=D]

The numbers of viewers take turns, so that a machine that others use is as slow for each of them. Prints the median of
the rounds' p50 and p99, and the ratio to no viewer; the last line is the page's bytes to a viewer.
"""
import argparse
import http.client
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "server" / "page"))
from page_process import CLI, Server, state  # noqa: E402

SESSIONS = 4


class Viewer(threading.Thread):
    def __init__(self, server, session):
        super().__init__(daemon=True)
        self.connection = http.client.HTTPConnection(server.address, timeout=30)
        self.session, self.bytes, self.ends = session, 0, False

    def run(self):
        self.connection.request("GET", f"/api/sessions/{self.session}/frames")
        answer = self.connection.getresponse()
        while not self.ends:
            piece = answer.read1(1 << 20)
            if not piece:
                return
            self.bytes += len(piece)


def sessions_of(server):
    while True:
        sessions = [s["id"] for s in state(server)["sessions"] if s["frames"]]
        if len(sessions) == SESSIONS:
            return sessions


def measure(server, viewers, options):
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out.json")
        bench = subprocess.Popen([CLI, f"--server={server.grpc}", "bench", f"--sessions={SESSIONS}", f"--size={options.size}",
                                  f"--rate={options.rate}", f"--seconds={options.seconds}", f"--method={options.method}",
                                  f"--json={out}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        sessions = sessions_of(server)
        watching = [Viewer(server, sessions[i % SESSIONS]) for i in range(viewers)]
        for viewer in watching:
            viewer.start()
        bench.wait()
        for viewer in watching:
            viewer.ends = True
        with open(out) as file:
            return json.load(file), sum(viewer.bytes for viewer in watching)


def find(tree, name):
    """The first number of this name in a tree."""
    if isinstance(tree, dict):
        if isinstance(tree.get(name), (int, float)):
            return tree[name]
        tree = list(tree.values())
    for each in tree if isinstance(tree, list) else []:
        found = find(each, name)
        if found is not None:
            return found
    return None


def main():
    parser = argparse.ArgumentParser()
    for name, value in {"size": "64", "rate": "2", "seconds": "10", "rounds": "3", "method": "affine", "device": "auto"}.items():
        parser.add_argument(f"--{name}", default=value)
    options = parser.parse_args()
    results = {count: [] for count in (0, 1, 16)}
    traffic = {}
    with Server(f"--device={options.device}") as server:
        for _ in range(int(options.rounds)):
            for count in results:
                report, traffic[count] = measure(server, count, options)
                results[count].append((find(report, "p50_ms") or find(report, "p50"), find(report, "p99_ms") or find(report, "p99")))
    base = None
    for count, rounds in results.items():
        p50, p99 = (statistics.median(values) for values in zip(*rounds))
        base = base or (p50, p99)
        print(f"{count:2d} viewers: p50 {p50:.1f} ms ({p50 / base[0]:.2f}), p99 {p99:.1f} ms ({p99 / base[1]:.2f})")
    print(f"bytes to 16 viewers in {options.seconds} s: {traffic[16]}")


if __name__ == "__main__":
    main()
