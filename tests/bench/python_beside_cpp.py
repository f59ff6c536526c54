#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the Python client adds to a frame, beside what the C++ client adds to the same one.

Overhead is the client's time from the begin of `send` to the answer with its field, less the device's phases in the
frame's latency breakdown. One intrawarpd serves both clients, each of which is a process of its own; they take turns,
--rounds of --frames each, so that other load of the machine meets both. client_overhead (tests/bench) is the C++ side.
The output is a table in Markdown of medians and minima in ms over all frames.
"""
import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIELDS = ("none", "control", "int16", "float32")
WAYS = ("connection", "shared")
UNCOUNTED = 2
PHASES = ("queue_ms", "upload_ms", "prepare_ms", "optimise_ms", "assess_ms", "encode_ms", "download_ms")


def import_client(sources):
    sys.path.insert(0, str(sources))
    import intrawarp

    return intrawarp


def ball(intrawarp, size):
    import numpy as np

    z, y, x = np.meshgrid(*3 * [np.arange(size)], indexing="ij")
    inside = (2 * x - size) ** 2 + (2 * y - size) ** 2 + 2 * (2 * z - size) ** 2 < size * size
    voxels = np.where(inside, 1000 + x * 256 // size, 0).astype(np.int16)
    return intrawarp.Image(voxels, axes="zyx", space="LPS", spacing_xyz=(256.0 / size,) * 3, origin_xyz=(0, 0, 0))


def run_python_client(arguments):
    """Prints the overhead of each frame; as client_overhead does."""
    intrawarp = import_client(arguments.sources)
    image = ball(intrawarp, arguments.size)
    with intrawarp.connect(arguments.address) as server:
        with server.navigate(
            fixed=arguments.volume,
            method="ffd" if arguments.field == "control" else "affine",
            levels=1,
            iterations=1,
            initial=[[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]],
            field=None if arguments.field == "none" else arguments.field,
            shared_memory=arguments.way == "shared",
        ) as session:
            for number in range(UNCOUNTED + arguments.frames):
                begin = time.perf_counter()
                session.send(image)
                answer = session.receive()
                milliseconds = 1000 * (time.perf_counter() - begin)
                if answer.error is not None:
                    raise answer.error
                assert (answer.field is not None) == (arguments.field != "none")
                assert answer.field is None or answer.shared == (arguments.way == "shared")
                latency = answer.report.proto.latency
                if number >= UNCOUNTED:
                    print(f"{milliseconds - sum(getattr(latency, each) for each in PHASES):.3f}")


class Server:
    def __init__(self, program, folder):
        command = [program, "--listen=127.0.0.1:0", "--http=127.0.0.1:0", "--device=cpu", "--pinned_bytes=2GiB"]
        command += [f"--shared_memory={folder}/segments", "--log_level=warning"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        line = self._process.stdout.readline().decode()
        if not line.startswith("ready "):
            raise SystemExit(f"{program} does not serve")
        self.address = line.split("grpc=")[1].split()[0]

    def stop(self):
        self._process.terminate()
        self._process.wait(30)


def figures(command):
    done = subprocess.run([str(each) for each in command], stdout=subprocess.PIPE, check=True)
    return [float(line) for line in done.stdout.split()]


def compare(arguments, address, volume, size, field, way):
    turn = [address, volume, str(size), field, way]
    clients = {"C++": [os.path.join(arguments.bin, "tests/bench/client_overhead"), *turn, arguments.frames]}
    for name, sources in (("before", arguments.before), ("Python", arguments.sources)):
        if sources is not None:
            flags = [f"--frames={arguments.frames}", f"--sources={sources}"]
            clients[name] = [arguments.python, __file__, "--client", *turn, *flags]
    found = {name: [] for name in clients}
    load = []
    for _ in range(arguments.rounds):
        for name, command in clients.items():
            load.append(os.getloadavg()[0])
            found[name] += figures(command)
    cells = [f"{size}^3", field, way]
    cells += [f"{statistics.median(each):.1f} / {min(each):.1f}" for each in found.values()]
    cpp, python = found["C++"], found["Python"]
    cells.append(f"{statistics.median(python) / statistics.median(cpp):.2f} / {min(python) / min(cpp):.2f}")
    cells.append(f"{min(load):.1f} to {max(load):.1f}")
    print_row(cells)


def print_row(cells):
    print("| " + " | ".join(cells) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", help="the folder of a build", default="build/dev")
    parser.add_argument("--sizes", help="edges of a frame", default="64,128")
    parser.add_argument("--fields", help="of " + ", ".join(FIELDS), default=",".join(FIELDS))
    parser.add_argument("--ways", help="of " + ", ".join(WAYS), default=",".join(WAYS))
    parser.add_argument("--rounds", help="turns of each client", type=int, default=3)
    parser.add_argument("--frames", help="frames of a turn", type=int, default=10)
    parser.add_argument("--python", help="the interpreter of the client", default="/usr/bin/python3")
    parser.add_argument("--sources", help="the folder of the package", default=ROOT / "client/python/src")
    parser.add_argument("--before", help="the folder of another state of the package, measured by turns, too")
    parser.add_argument("--client", nargs=5, metavar=("ADDRESS", "VOLUME", "SIZE", "FIELD", "WAY"),
                        help="be the Python client of one turn, as the program itself asks for it")
    arguments = parser.parse_args()
    if arguments.client is not None:
        arguments.address, arguments.volume, size, arguments.field, arguments.way = arguments.client
        arguments.size = int(size)
        run_python_client(arguments)
        return
    intrawarp = import_client(arguments.sources)
    with tempfile.TemporaryDirectory() as folder:
        server = Server(os.path.join(arguments.bin, "server/intrawarpd"), folder)
        try:
            with intrawarp.connect(server.address) as connection:
                heads = ["frame", "field", "way", "C++, median / min"]
                heads += [] if arguments.before is None else ["before"]
                heads += ["Python", "Python / C++", "load average"]
                print_row(heads)
                print("|" + len(heads) * "---|")
                for size in map(int, arguments.sizes.split(",")):
                    volume = connection.put(ball(intrawarp, size)).name
                    for field in arguments.fields.split(","):
                        for way in arguments.ways.split(","):
                            compare(arguments, server.address, volume, size, field, way)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
