#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Relative links of the Markdown pages lead somewhere: the file is there, and so is the heading behind a '#'.

    links.py ROOT      exit status 1, with a line for each link that leads nowhere
"""
import pathlib
import re
import sys

LINK = re.compile(r"\]\(([^)\s]+)\)")
OTHER_ROOMS = {".git", "build", "quickstart-out"}


def anchors(page):
    """The anchors that a Git host makes of the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ +(.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(page):
    """The links of a page that lead nowhere."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for link in LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            yield link


def main(root):
    pages = [page for page in sorted(pathlib.Path(root).rglob("*.md"))
             if not OTHER_ROOMS.intersection(page.relative_to(root).parts)]
    if not pages:
        sys.exit(f"{root}: no pages")
    found = [f"{page}: {link}" for page in pages for link in broken(page)]
    print("\n".join(found) if found else f"{len(pages)} pages")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
