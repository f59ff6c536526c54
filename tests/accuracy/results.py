# SPDX-License-Identifier: Apache-2.0
"""A file of JSON lines that a long run appends to and goes on from."""

import json
import subprocess

import methods


class Results:
    """The first line says what made the rest. A record whose `key` fields are in the file is not made again."""

    def __init__(self, path, settings, key):
        self._path = path
        self._key = key
        self.records = []
        if path.exists():
            first, self.records = read(path)
            if first != settings:
                raise methods.Failed(f'{path} was made otherwise ({first}); name another folder with --out')
            end_whole_lines(path)
        else:
            self._append(settings)
        self._done = {self._key_of(record) for record in self.records}

    def has(self, *key):
        return key in self._done

    def add(self, record):
        self.records.append(record)
        self._done.add(self._key_of(record))
        self._append(record)

    def _key_of(self, record):
        return tuple(record[name] for name in self._key)

    def _append(self, values):
        with open(self._path, 'a', encoding='utf-8') as file:
            file.write(json.dumps(values) + '\n')


def read(path):
    """(settings, records). A last line that was cut off by the end of a run is left out."""
    lines = path.read_text(encoding='utf-8').splitlines()
    values = []
    for number, line in enumerate(lines):
        try:
            values.append(json.loads(line))
        except json.JSONDecodeError:
            if number + 1 < len(lines):
                raise
    return values[0], values[1:]


def end_whole_lines(path):
    """Cuts off what follows the last line break."""
    content = path.read_bytes()
    path.write_bytes(content[:content.rfind(b'\n') + 1])


def program_of(binaries):
    """The server's name, version and revision."""
    done = subprocess.run([str(binaries / 'intrawarpd'), '--version'], capture_output=True, text=True, check=True)
    return done.stdout.strip()
