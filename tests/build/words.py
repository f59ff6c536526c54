#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turns of phrase that CONTRIBUTING's table of wording replaces do not come back.

    words.py ROOT             exit status 1, with a line for each file that has more of them than words.txt allows it
    words.py ROOT --update    lowers the counts in words.txt to what the files have; never raises one

A phrase is "is no X" or "are no X" for "is not a X" ("there is no X" and "is no longer" are English), a comment that
opens with Of, Those or Whose, or a name in the server's C++ with "kept" (the wire's kept_frame_number stays). A file
that words.txt does not name may have none.
"""
import pathlib
import re
import subprocess
import sys

SUFFIXES = {".h", ".cc", ".cu", ".cuh", ".py", ".proto", ".md", ".cmake", ".conf", ".yaml", ".yml"}
USUAL = "longer|more|less|larger|smaller|better|worse|later|earlier|older|coarser|further|one|other"
IS_NO = re.compile(rf"\b(?<!there )(?<!There )(?:is|are) no (?!(?:{USUAL})\b)[a-z]")
OPENING = re.compile(r"^\s*(?://|#) (?:Of|Those|Whose) ")
KEPT = re.compile(r"\b(?:Kept[A-Z]\w*|\w*[a-z]Kept|is_kept|kept_(?!frame_number\b)\w*)\b")
# These quote the phrases to forbid them.
SELF = {"CONTRIBUTING.md", "tests/build/words.py"}


def comment_starts(lines):
    """The lines that open a comment, rather than continue one."""
    for before, line in zip([""] + lines, lines):
        if not re.match(r"\s*(//|#)", before):
            yield line


def count(path, is_server):
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    found = sum(len(IS_NO.findall(line)) for line in lines)
    if path.suffix != ".md":
        found += sum(1 for line in comment_starts(lines) if OPENING.match(line))
    if is_server and path.suffix in {".h", ".cc"}:
        found += sum(len(KEPT.findall(line)) for line in lines)
    return found


def files(root):
    """The files that git knows, or all of them in an exported tree."""
    listed = subprocess.run(["git", "-C", root, "ls-files"], capture_output=True, text=True, check=False)
    if listed.returncode == 0:
        names = listed.stdout.splitlines()
    else:
        names = [str(path.relative_to(root)) for path in root.rglob("*") if "build" not in path.parts]
    return sorted(name for name in names if pathlib.Path(name).suffix in SUFFIXES and name not in SELF and
                  (root / name).is_file())


def main():
    root = pathlib.Path(sys.argv[1])
    baseline = root / "tests/build/words.txt"
    allowed = {}
    for line in baseline.read_text().splitlines():
        if line and not line.startswith("#"):
            name, number = line.rsplit(" ", 1)
            allowed[name] = int(number)
    found = {name: count(root / name, name.startswith("server/")) for name in files(root)}
    if sys.argv[2:] == ["--update"]:
        comments = [line for line in baseline.read_text().splitlines() if line.startswith("#")]
        kept = {name: min(number, found.get(name, 0)) for name, number in allowed.items()}
        baseline.write_text("\n".join(comments + [f"{name} {n}" for name, n in sorted(kept.items()) if n]) + "\n")
        return 0
    failed = 0
    for name, number in found.items():
        if number > allowed.get(name, 0):
            print(f"{name}: {number} of the phrases that CONTRIBUTING replaces, {allowed.get(name, 0)} allowed")
            failed = 1
    return failed


sys.exit(main())
