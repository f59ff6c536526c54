#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Deals the sources of each target out to units, each of which is compiled at once (cmake/IntrawarpUnity.cmake).

    deal_units.py ROOT < SOURCES > UNITS

SOURCES has a line "TARGET SOURCE" for each source, UNITS a line "TARGET UNIT SOURCE" for each source that shares a unit;
the others are compiled by themselves. A file-local name of a source is one that it declares in an unnamed namespace, with
`static` or with #define. Two sources do not share a unit where such a name of one occurs in the other, or in a header of
this tree that only the other includes. The same sources give the same units.
"""
import functools
import pathlib
import re
import sys

# More lines do not save much: the headers are most of what the compiler reads, and a core has to have work to the end.
UNIT_LINES = 2500

NOT_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"', re.S)
INCLUDE = re.compile(r'^#include "([^"]+)"', re.M)
WORD = re.compile(r"(\.|->|::)?\s*\b([A-Za-z_]\w*)")
DEFINITION = re.compile(r"#define\s+(\w+)")
MATCHER = re.compile(r"MATCHER\w*\((\w+)")
MACRO_CALL = re.compile(r"[A-Z][A-Z0-9_]*\(")
TYPE = re.compile(r"(?:template[^{;(]*>\s*)?(?:class|struct|union|enum class|enum)\s+(\w+)")
ALIAS = re.compile(r"using\s+(\w+)\s*=")
DECLARED = re.compile(r"\b([A-Za-z_]\w*)\s*[(={;\[,]")
NO_NAMES = {"operator", "double", "float", "int", "void", "bool"}


@functools.cache
def read(path):
    """The text of a file without comments and strings, and what it includes."""
    raw = path.read_text(encoding="utf-8")
    return NOT_CODE.sub(lambda match: " " if match[0].startswith("/") else '""', raw), INCLUDE.findall(raw)


@functools.cache
def headers(path, root):
    """The headers of this tree that a source includes, and those that they include."""
    seen = set()
    waiting = [path]
    while waiting:
        for name in read(waiting.pop())[1]:
            header = root / name
            if header not in seen and header.exists():
                seen.add(header)
                waiting.append(header)
    return frozenset(seen)


@functools.cache
def words(path):
    """The names in a file, but for members and qualified ones."""
    return frozenset(match[2] for match in WORD.finditer(read(path)[0]) if not match[1])


def declared(line):
    """The name that a line declares which stands at the margin of an unnamed namespace; None where it declares none."""
    for pattern in (MATCHER, TYPE, ALIAS):
        if match := pattern.match(line):
            return match[1]
    if line.startswith("using") or MACRO_CALL.match(line):
        return None
    match = DECLARED.search(line)
    return match[1] if match else None


@functools.cache
def file_local(path):
    """The names that only the source itself may use."""
    names = set()
    unnamed = False
    for line in read(path)[0].split("\n"):
        if match := DEFINITION.match(line):
            names.add(match[1])
        elif line.startswith("namespace {"):
            unnamed = True
        elif line.startswith(("namespace", "extern")) or not re.match(r"\w", line):
            continue
        elif unnamed or line.startswith("static "):
            names.add(declared(line))
    return frozenset(names - NO_NAMES - {None})


def clash(one, other, root):
    """Whether a file-local name of `one` means something else, or is ambiguous, in `other`."""
    names = file_local(one)
    seen = [other, *(headers(other, root) - headers(one, root))]
    return any(not names.isdisjoint(words(path)) for path in seen)


def deal(sources, root):
    """The sources in units: each in the first that has room for it and no source that it clashes with."""
    units = []
    for source in sources:
        lines = read(source)[0].count("\n")
        for unit in units:
            if unit["lines"] + lines > UNIT_LINES:
                continue
            if any(clash(source, other, root) or clash(other, source, root) for other in unit["sources"]):
                continue
            unit["sources"].append(source)
            unit["lines"] += lines
            break
        else:
            units.append({"lines": lines, "sources": [source]})
    return [unit["sources"] for unit in units]


def main(root):
    targets = {}
    for line in sys.stdin:
        target, source = line.rstrip("\n").split(" ", 1)
        # Highway includes such a source once an instruction set, by its name.
        if "foreach_target.h" not in pathlib.Path(source).read_text(encoding="utf-8"):
            targets.setdefault(target, []).append(pathlib.Path(source))
    for target, sources in targets.items():
        for index, unit in enumerate(unit for unit in deal(sources, root) if len(unit) > 1):
            for source in unit:
                print(target, index, source)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
