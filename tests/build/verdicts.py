#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The table of reasons in docs/use/report.md has a row for each cause of a verdict, with the words that the server says.

    verdicts.py ROOT      exit status 1, with a line for each difference

The causes are those of enum VerdictCause on the wire. The words are the engine's (ReviewText); a lateness, which only the
server knows, is said in server/registration/registration_report.cc.
"""
import pathlib
import re
import sys


def wire_causes(root):
    """The names of enum VerdictCause, without their prefix."""
    proto = (root / "proto/intrawarp/v1/registration.proto").read_text(encoding="utf-8")
    values = re.findall(r"^  VERDICT_CAUSE_(\w+) = \d+;", proto, re.M)
    return [value for value in values if value != "UNSPECIFIED"]


def said(root):
    """The words of each cause, by its name on the wire."""
    engine = (root / "engine/quality/verdict.cc").read_text(encoding="utf-8")
    server = (root / "server/registration/registration_report.cc").read_text(encoding="utf-8")
    names = dict(re.findall(r"case ReviewCause::(\w+):\s+return v1::VERDICT_CAUSE_(\w+);", server))
    words = {names.get(cause, cause): text
             for cause, text in re.findall(r"case ReviewCause::(\w+):\s+return \"([^\"]+)\";", engine)}
    words.update(re.findall(r"set_cause\(v1::VERDICT_CAUSE_(\w+)\);\s+reason\.set_message\(\"([^\"]+)\"\);", server))
    return words


def rows(root):
    """The table's rows: cause, words, meaning, advice."""
    page = (root / "docs/use/report.md").read_text(encoding="utf-8")
    section = page.partition("\n## The reasons\n")[2].partition("\n## ")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:3] == "| `"]
    return {row[0].strip("`"): row[1:] for row in cells}


def differences(causes, words, table):
    yield from (f"no row for {cause}" for cause in causes if cause not in table)
    yield from (f"no words for {cause}" for cause in causes if cause not in words)
    yield from (f"{cause} is not a cause" for cause in (table | words) if cause not in causes)
    for cause, row in table.items():
        if len(row) != 3 or not all(row):
            yield f"{cause}: words, meaning and advice"
        elif cause in words and row[0] != words[cause]:
            yield f"{cause}: the server says \"{words[cause]}\""


def main(root):
    causes = wire_causes(root)
    found = list(differences(causes, said(root), rows(root)))
    print("\n".join(f"docs/use/report.md: {line}" for line in found) if found else f"{len(causes)} causes")
    return 1 if found or not causes else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
