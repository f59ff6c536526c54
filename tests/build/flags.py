#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The pages that show the flags of intrawarpd say what the program says.

    tests/build/flags.py SOURCE_DIR INTRAWARPD           exit status 1 and a line for each page that differs
    tests/build/flags.py SOURCE_DIR INTRAWARPD --write   writes the tables of docs/use/flags.md and deploy/intrawarpd.conf

The tables are made of `intrawarpd --help`, the file of `intrawarpd --print_config`; the file keeps the flags that it sets.
"""
import pathlib
import re
import subprocess
import sys

BEGIN, END = "<!-- tests/build/flags.py --write -->", "<!-- end of the tables -->"


def cell(text):
    """A text of the help in a table, with links to pages."""
    text = text.replace("|", "\\|")
    text = re.sub(r"(?<![\w`-])(--\w+)", r"`\1`", text)
    return re.sub(r"docs/(use|operate)/([\w-]+\.md)",
                  lambda found: f"[{found[2]}]({'' if found[1] == 'use' else '../operate/'}{found[2]})", text)


def tables(help_text):
    lines = []
    for line in help_text.splitlines()[2:]:
        flag = re.fullmatch(r"  (--\w+)(=\S+)? +(.*?)(?: \(([^()]*)\))?", line)
        if flag and flag[2] is None:  # a switch
            lines.append(f"| `{flag[1]}` | off | {cell(re.sub('^  --.*?  +', '', line))} |")
        elif flag:
            lines.append(f"| `{flag[1]}` | {cell(flag[4])} | {cell(flag[3])} |")
        elif line:
            lines += [f"### {cell(line.rstrip(':'))}", "", "| flag | default | |", "|---|---|---|"]
        else:
            lines.append("")
    return "\n".join(lines) + "\n"


def shipped(template, old):
    """The template with the lines that the shipped file sets."""
    set_lines = dict(line.split(" = ", 1) for line in old.splitlines() if re.match(r"\w+ = ", line))
    lines = []
    for line in template.splitlines():
        name = re.match(r"#(\w+) = ", line)
        lines.append(f"{name[1]} = {set_lines[name[1]]}" if name and name[1] in set_lines else line)
    return "\n".join(lines) + "\n"


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main(source_dir, intrawarpd, write):
    page, config = (pathlib.Path(source_dir) / path for path in ("docs/use/flags.md", "deploy/intrawarpd.conf"))
    before, _, rest = page.read_text().partition(BEGIN)
    new = {page: f"{before}{BEGIN}\n\n{tables(output(intrawarpd, '--help'))}\n{END}{rest.partition(END)[2]}",
           config: shipped(output(intrawarpd, "--print_config"), config.read_text())}
    wrong = [path for path, text in new.items() if path.read_text() != text]
    for path in wrong:
        if write:
            path.write_text(new[path])
        else:
            print(f"{path}: does not show what {pathlib.Path(intrawarpd).name} says; run tests/build/flags.py --write")
    return 0 if write else bool(wrong)


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[3:] not in ([], ["--write"]):
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], sys.argv[2], write=sys.argv[3:] == ["--write"]))
