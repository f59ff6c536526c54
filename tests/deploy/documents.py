#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Alerts, their tests, the runbook and the dashboards agree with each other.  documents.py SOURCE_DIR"""
import glob
import json
import re
import sys

SOURCE = sys.argv[1]
SEVERITIES = {"page", "ticket"}
errors = []


def text(path):
    with open(f"{SOURCE}/{path}", encoding="utf-8") as file:
        return file.read()


def expect(condition, message):
    if not condition:
        errors.append(message)


def check_alerts():
    rules = text("deploy/prometheus/alerts.yml")
    alerts = re.findall(r"- alert: (\w+)\n(.*?)(?=\n      - alert:|\n  - name:|\n  #|\Z)", rules, re.S)
    names = [name for name, _ in alerts]
    expect(len(names) > 10 and len(set(names)) == len(names), "alerts.yml: too few alerts, or one twice")
    for name, body in alerts:
        severity = re.search(r"severity: (\w+)", body)
        expect(severity and severity.group(1) in SEVERITIES, f"{name}: has no severity")
        expect(f"runbook: docs/runbook.md#{name.lower()}\n" in body + "\n", f"{name}: does not name its runbook entry")

    tests = text("tests/deploy/alerts_test.yml")
    for name in names:
        cases = re.findall(rf"alertname: {name}\n +eval_time: \S+\n +exp_alerts:( \[\])?", tests)
        expect("" in cases, f"{name}: no test in which it fires")

    runbook = re.findall(r"^## (\w+)\n\n(.*?)(?=\n## |\Z)", text("docs/runbook.md"), re.S | re.M)
    expect([name for name, _ in runbook] == names, "docs/runbook.md: its entries are not the alerts in their order")
    for name, entry in runbook:
        expect(len(entry.split()) >= 25, f"docs/runbook.md: {name} says too little")


def check_dashboard(path):
    board = json.loads(text(path))
    panels = board["panels"]
    identifiers = [panel["id"] for panel in panels]
    expect(len(set(identifiers)) == len(identifiers), f"{path}: two panels with one id")
    taken = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                 for y in range(place["y"], place["y"] + place["h"])}
        expect(not cells & taken and place["x"] + place["w"] <= 24, f"{path}: {panel['title']} lies on another panel")
        taken |= cells
        if panel["type"] == "row":
            continue
        expect(panel["targets"], f"{path}: {panel['title']} shows nothing")
        for target in panel["targets"]:
            expect(target["datasource"]["uid"] == "prometheus", f"{path}: {panel['title']}: another data source")
    return board["uid"]


check_alerts()
paths = sorted(glob.glob("deploy/grafana/dashboards/*.json", root_dir=SOURCE))
uids = [check_dashboard(path) for path in paths]
expect(len(uids) >= 2 and len(set(uids)) == len(uids), "dashboards: too few, or two with one uid")
for error in errors:
    print(error, file=sys.stderr)
sys.exit(1 if errors else 0)
