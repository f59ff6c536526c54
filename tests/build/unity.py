#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The compiler's front end takes each unit of sources that INTRAWARP_UNITY compiles together, as deploy/quickstart does.

    unity.py CMAKE SOURCE_DIR BUILD_DIR      BUILD_DIR: a built tree, for the headers that are made of the protos
"""
import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile


def units(cmake, source, build, work):
    """The commands that compile a unit, for the front end only."""
    options = {"CMAKE_BUILD_TYPE": "Release", "CMAKE_EXPORT_COMPILE_COMMANDS": "ON", "INTRAWARP_UNITY": "ON",
               "INTRAWARP_CUDA": "OFF", "INTRAWARP_BUILD_TESTS": "OFF", "INTRAWARP_BUILD_BENCH": "OFF"}
    subprocess.run([cmake, "-S", source, "-B", work, "-G", "Ninja", "--log-level=WARNING",
                    *(f"-D{name}={value}" for name, value in options.items())], check=True, stdout=subprocess.DEVNULL)
    entries = json.loads((pathlib.Path(work) / "compile_commands.json").read_text())
    for entry in entries:
        if "/Unity/" not in entry["file"]:
            continue
        words = shlex.split(entry["command"].replace(f"{work}/proto", f"{build}/proto"))
        unit = pathlib.Path(entry["file"])
        unit.write_text(unit.read_text().replace(f"{work}/proto", f"{build}/proto"))
        yield entry["file"][len(work):], words[:words.index("-o")] + ["-fsyntax-only", entry["file"]]


def main(cmake, source, build):
    failed = 0
    with tempfile.TemporaryDirectory() as work, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        commands = list(units(cmake, source, build, work))
        if not commands:
            sys.exit("no source is compiled with others")
        runs = pool.map(lambda command: subprocess.run(command[1], capture_output=True, text=True, cwd=work), commands)
        for (name, _), run in zip(commands, runs):
            if run.returncode != 0:
                failed = 1
                errors = [line for line in run.stderr.splitlines() if "error:" in line]
                print(f"{name}: rename, or let cmake/deal_units.py see the clash", *errors[:5], sep="\n  ")
    print(f"{len(commands)} units")
    return failed


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
