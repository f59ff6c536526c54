#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The page open for hours: how memory grows, in the server and in the browser.

    INTRAWARPD=... INTRAWARP_CLI=... tests/bench/page_soak.py [--seconds=7200] [--rate=0.5] [--size=48]

A server with a page, a session of frames at a low rate, and headless Chromium that shows them with its software
renderer. Every 30 seconds a line: seconds, resident memory of the server, proportional memory of the browser's
processes, the heap of the page's JavaScript after a collection, all in MB, and how many pictures were drawn. At the end
the slopes after the first ten minutes, with their standard errors. Needs chromium, chromedriver and selenium.
"""
import argparse
import math
import os
import pathlib
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "server" / "page"))
import page_browser_test  # noqa: E402
from page_process import CLI, Server, wait_for_session  # noqa: E402

SETTLING = 600
# A session that has ended is left for the newest one, as a person would do.
TAKE_NEWEST = """
const select = document.getElementById('session'), word = document.getElementById('word').textContent;
if (word === 'SESSION ENDED' && select.options.length > 0) {
  select.selectedIndex = select.options.length - 1;
  select.dispatchEvent(new Event('change'));
}
"""
COLUMNS = ("server", "browser", "heap")


def descendants(pid):
    """The processes below one, itself included."""
    children = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = pathlib.Path(f"/proc/{entry}/stat").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            children.setdefault(int(stat.rsplit(")", 1)[1].split()[1]), []).append(int(entry))
    found, waiting = [], [pid]
    while waiting:
        each = waiting.pop()
        found.append(each)
        waiting.extend(children.get(each, []))
    return found


def proportional_mb(pids):
    total = 0
    for pid in pids:
        try:
            lines = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def slope(seconds, values):
    """MB an hour and its standard error, by least squares."""
    n, mean_t, mean_v = len(seconds), sum(seconds) / len(seconds), sum(values) / len(values)
    squares = sum((t - mean_t) ** 2 for t in seconds)
    b = sum((t - mean_t) * (v - mean_v) for t, v in zip(seconds, values)) / squares
    residual = sum((v - mean_v - b * (t - mean_t)) ** 2 for t, v in zip(seconds, values))
    return 3600 * b, 3600 * math.sqrt(residual / max(1, n - 2) / squares)


class Frames:
    """A session of frames, and another when it has ended: every ten minutes the page loses its session."""

    def __init__(self, server, arguments):
        self._command = [CLI, f"--server={server.grpc}", "bench", f"--size={arguments.size}", "--method=affine",
                         f"--rate={arguments.rate}", "--seconds=600"]
        self._stopped = threading.Event()
        self._process = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        while not self._stopped.is_set():
            self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            self._process.wait()
            self._stopped.wait(1)

    def stop(self):
        self._stopped.set()
        self._process.terminate()
        self._thread.join()


def watch(server, driver, seconds):
    rows, start = [], time.monotonic()
    while (now := time.monotonic() - start) < seconds:
        driver.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
        heap = driver.execute_cdp_cmd("Runtime.getHeapUsage", {})["usedSize"] / 2**20
        browser = proportional_mb(descendants(driver.service.process.pid))
        drawn = driver.execute_script("return intrawarpPage.counts.drawn")
        driver.execute_script(TAKE_NEWEST)
        rows.append((now, server.resident_kib() / 1024, browser, heap))
        print(f"{now:.0f} {rows[-1][1]:.1f} {browser:.1f} {heap:.2f} {drawn} "
              f"{driver.find_element('id', 'word').text}", flush=True)
        time.sleep(30)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=7200)
    parser.add_argument("--rate", type=float, default=0.5)
    parser.add_argument("--size", type=int, default=48)
    arguments = parser.parse_args()
    with Server() as server:
        frames = Frames(server, arguments)
        wait_for_session(server)
        driver = page_browser_test.browser(800, 600)
        try:
            driver.get(f"{server.page}/")
            rows = watch(server, driver, arguments.seconds)
        finally:
            driver.quit()
            frames.stop()
    settled = [row for row in rows if row[0] >= SETTLING] or rows
    for i, name in enumerate(COLUMNS, 1):
        b, error = slope([row[0] for row in settled], [row[i] for row in settled])
        print(f"{name}: {b:+.2f} +- {error:.2f} MB an hour, {settled[0][i]:.1f} to {settled[-1][i]:.1f} MB")


if __name__ == "__main__":
    main()
