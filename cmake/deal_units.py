#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Deals the sources of each target out to units, each of which is compiled at once (cmake/IntrawarpUnity.cmake).

    deal_units.py ROOT < SOURCES > UNITS

SOURCES has a line "TARGET SOURCE" for each source, UNITS a line "TARGET UNIT SOURCE" for each source that shares a
unit; the others are compiled by themselves. A name is file-local where a source declares it in an unnamed namespace,
with `static` or with #define. Two sources do not share a unit where the other, or a header of this tree that the other
includes, declares such a name of one, too. Names of members do not count. The same sources give the same units.
"""
import functools
import pathlib
import re
import sys

# More lines do not save much: the headers are most of what the compiler reads, and a core has to have work to the end.
UNIT_LINES = 2500

NOT_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"', re.S)
INCLUDE = re.compile(r'^#include "([^"]+)"', re.M)
DEFINITION = re.compile(r"#define\s+(\w+)")
ARGUMENTS = re.compile(r"<[^<>]*>")
MATCHER = re.compile(r"MATCHER\w*\((\w+)")
MACRO_CALL = re.compile(r"[A-Z][A-Z0-9_]*\(")
TYPE = re.compile(r"(?:class|struct|union|enum class|enum)\s+(\w+)")
ENUM = re.compile(r"enum\b(?! class)[^{]*\{(.*)")
ALIAS = re.compile(r"using\s+(\w+)\s*=")
# A name before what ends a declarator; a qualified name belongs to a class.
FUNCTION = re.compile(r"[^=({;\[]*?(?<![:\w])([A-Za-z_]\w*)\s*\(")
VALUE = re.compile(r"(?<![:\w])([A-Za-z_]\w*)\s*[={;\[,]")


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


def declared(line):
    """The names that a line declares which stands at the margin, outside of functions and classes."""
    while ARGUMENTS.search(line):
        line = ARGUMENTS.sub("", line)
    line = re.sub(r"^(template|static|inline)\b\s*", "", line)
    for pattern in (MATCHER, ALIAS):
        if match := pattern.match(line):
            return {match[1]}
    if line.startswith("using") or MACRO_CALL.match(line):
        return set()
    if match := ENUM.match(line):
        return set(re.findall(r"\w+", match[1])) | set(TYPE.findall(line))
    for pattern in (TYPE, FUNCTION):
        if match := pattern.match(line):
            return {match[1]}
    return set(VALUE.findall(line))


@functools.cache
def names(path):
    """What a file declares at the margin: the file-local names, and all of them."""
    local, every = set(), set()
    unnamed = False
    for line in read(path)[0].split("\n"):
        if match := DEFINITION.match(line):
            local.add(match[1])
        elif line.startswith("namespace {"):
            unnamed = True
        elif line.startswith("}  "):
            unnamed = False
        elif re.match(r"\w", line) and not line.startswith(("namespace", "extern")):
            of_line = declared(line)
            every |= of_line
            if unnamed or line.startswith("static "):
                local |= of_line
    return frozenset(local), frozenset(every | local)


def clash(one, other, root):
    """Whether `other` sees another declaration of a file-local name of `one`."""
    seen = [other, *headers(other, root)]
    return any(not names(one)[0].isdisjoint(names(path)[1]) for path in seen)


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
