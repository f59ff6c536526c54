# SPDX-License-Identifier: Apache-2.0
"""Processes of a test, and questions to a real Prometheus and Alertmanager."""
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def get(url):
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.read().decode()


def wait_for(what, condition, seconds=120):
    """The first true value of the condition; the end of the test when there is none in time."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            value = condition()
        except OSError:
            value = None
        if value:
            return value
        if time.monotonic() > deadline:
            sys.exit(f"waited in vain for {what}")
        time.sleep(0.2)


def is_nearly_full(folder):
    """Whether StateDiskNearlyFull, which comes at a tenth, may be true of the machine's own disk."""
    disk = os.statvfs(folder)
    return disk.f_bavail < 0.15 * disk.f_blocks


def require(*programs):
    for program in programs:
        if shutil.which(program) is None:
            sys.exit(f"{program} is not installed")


class Processes:
    """Those of a test; they end with it. Their output goes to files of the folder, unless a pipe takes it."""

    def __init__(self, folder):
        self.folder = folder
        self.running = []

    def start(self, name, *command, stdin=subprocess.DEVNULL, stdout=None):
        log = open(f"{self.folder}/{name}.log", "wb")
        process = subprocess.Popen(command, stdin=stdin, stdout=stdout or log, stderr=log, text=bool(stdout))
        self.running.append(process)
        return process

    def stop_all(self):
        for process in reversed(self.running):
            process.kill()
            process.wait()


def read_ready(server):
    """The addresses in the line that a server prints once it serves, by name."""
    return dict(word.split("=") for word in server.stdout.readline().split()[1:])


class Prometheus:
    """Started with a configuration, in JSON, which is YAML."""

    def __init__(self, processes, folder, configuration):
        self.url = f"http://127.0.0.1:{free_port()}"
        config = f"{folder}/prometheus.yml"
        with open(config, "w", encoding="utf-8") as file:
            json.dump(configuration, file)
        processes.start("prometheus", "prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder}/tsdb",
                        f"--web.listen-address={self.url[len('http://'):]}", "--log.level=warn")
        # Until it has read its files it answers queries with a text.
        wait_for("Prometheus", lambda: "Ready" in get(f"{self.url}/-/ready"))

    def query(self, expression):
        answer = json.loads(get(f"{self.url}/api/v1/query?query={urllib.parse.quote(expression)}"))
        if answer["status"] != "success":
            sys.exit(f"{expression}: {answer['error']}")
        return answer["data"]["result"]

    def rules(self):
        groups = json.loads(get(f"{self.url}/api/v1/rules"))["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]


def start_alertmanager(processes, folder, config):
    """Its address."""
    address = f"127.0.0.1:{free_port()}"
    processes.start("alertmanager", shutil.which("prometheus-alertmanager"), "--cluster.listen-address=",
                    f"--config.file={config}", f"--storage.path={folder}/alertmanager", f"--web.listen-address={address}")
    return address
