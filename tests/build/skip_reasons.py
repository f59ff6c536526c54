#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each reason that a test gives for skipping is one that tests/expected_skips.txt allows.

    skip_reasons.py ROOT      exit status 1, with a line for each reason that the list does not have
"""
import pathlib
import re
import sys

SKIP = re.compile(r'GTEST_SKIP\(\)(?:\s*<<\s*"([^"]*)"\s*;)?')


def allowed(root):
    lines = (root / "tests/expected_skips.txt").read_text(encoding="utf-8").splitlines()
    return {line.split(" ", 1)[1] for line in lines if line and not line.startswith("#")}


def unexpected(root):
    """(path, reason) of the skips that the list does not allow; a reason that is not one literal is None."""
    reasons = allowed(root)
    for path in sorted((root / "tests").rglob("*")):
        if path.suffix not in (".h", ".cc"):
            continue
        for match in SKIP.finditer(path.read_text(encoding="utf-8")):
            if match.group(1) not in reasons:
                yield path.relative_to(root), match.group(1)


def main():
    found = list(unexpected(pathlib.Path(sys.argv[1])))
    for path, reason in found:
        print(f"{path}: {reason or 'a skip whose reason is not one literal'}: not in tests/expected_skips.txt")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
