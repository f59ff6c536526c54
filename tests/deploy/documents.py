#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Alerts, their tests, the runbook, the log's warnings and errors, and the dashboards agree with each other.
documents.py SOURCE_DIR"""
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
        expect(f"runbook: docs/operate/runbook.md#{name.lower()}\n" in body + "\n", f"{name}: does not name its runbook entry")

    tests = text("tests/deploy/alerts_test.yml")
    for name in names:
        cases = re.findall(rf"alertname: {name}\n +eval_time: \S+\n +exp_alerts:( \[\])?", tests)
        expect("" in cases, f"{name}: no test in which it fires")

    runbook = re.findall(r"^## (\w+)\n\n(.*?)(?=\n## |\Z)", text("docs/operate/runbook.md"), re.S | re.M)
    expect([name for name, _ in runbook] == names, "docs/operate/runbook.md: its entries are not the alerts in their order")
    for name, entry in runbook:
        expect(len(entry.split()) >= 25, f"docs/operate/runbook.md: {name} says too little")


def alarming_events():
    """The events that the server logs as warnings or errors."""
    events = set()
    for path in glob.glob("server/**/*.cc", root_dir=SOURCE, recursive=True):
        # A call's severity and event, which may both be conditional, end before its fields.
        for call in re.findall(r"\bLog\(([^{;]*)", text(path)):
            if re.search(r"Severity::k(Warning|Error)", call):
                events.update(re.findall(r'"([a-z_]+)"', call))
    return events


def check_log_events():
    events = alarming_events()
    expect({"page_not_reloaded", "device_hung", "audit_abandoned", "dicom_import"} <= events,
           "server: warnings and errors of the log are not found")
    named = set(re.findall(r"`([a-z_]+)`", text("docs/operate/runbook.md")))
    # audit_closed is logged by the same call as audit_abandoned, and is not a warning.
    for event in sorted(events - named - {"audit_closed"}):
        expect(False, f"docs/operate/runbook.md: says nothing of the log event {event}")


def unit_of(expression):
    """What a query counts, by the names and the form of its metrics: enough to find two units on one axis."""
    if re.search(r"[:_]ratio(_rate\d+m)?\{|process_open_fds\{.*\} / |_held_seconds_total", expression):
        return "percentunit"
    if re.search(r"_bytes(\{|$)", expression) and "rate(" not in expression:
        return "bytes"
    if re.search(r"_seconds(\{|$)|_seconds_bucket|^\(time\(\)|:p\d\d_rate1m", expression):
        return "s"
    return None


def check_units(path, panel):
    field = panel["fieldConfig"]
    overridden = {override["matcher"]["options"]: {p["id"]: p["value"] for p in override["properties"]}
                  for override in field.get("overrides", []) if override["matcher"]["id"] == "byFrameRefID"}
    for target in panel["targets"]:
        shown = overridden.get(target["refId"], {}).get("unit", field["defaults"].get("unit"))
        wanted = unit_of(target["expr"])
        expect(wanted is None or shown == wanted,
               f"{path}: {panel['title']}: {target['refId']} counts in {wanted} and is shown in {shown}")
    units = {overridden.get(target["refId"], {}).get("unit", field["defaults"].get("unit")) for target in panel["targets"]}
    expect(len(units) == 1 or any("custom.axisPlacement" in each for each in overridden.values()),
           f"{path}: {panel['title']}: two units on one axis")


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
        expect(len(panel.get("description", "").split()) >= 2, f"{path}: {panel['title']} has no description")
        check_units(path, panel)
        for target in panel["targets"]:
            expect(target["datasource"]["uid"] == "prometheus", f"{path}: {panel['title']}: another data source")
    return board["uid"]


def check_demo():
    """The demonstration routes as a site does, and tells nobody."""
    def routes(name):
        return re.search(r"^route:\n.*?(?=^receivers:)", text(f"deploy/alertmanager/{name}"), re.S | re.M).group(0)
    expect(routes("demo.yml") == routes("alertmanager.yml"), "alertmanager/demo.yml routes otherwise than alertmanager.yml")
    expect("_configs:" not in text("deploy/alertmanager/demo.yml"), "alertmanager/demo.yml tells somebody")
    expect("alertmanager/demo.yml" in text("deploy/compose.yaml"), "compose.yaml: alerts go to a host that is not there")


check_alerts()
check_log_events()
check_demo()
paths = sorted(glob.glob("deploy/grafana/dashboards/*.json", root_dir=SOURCE))
uids = [check_dashboard(path) for path in paths]
expect(len(uids) >= 2 and len(set(uids)) == len(uids), "dashboards: too few, or two with one uid")
for error in errors:
    print(error, file=sys.stderr)
sys.exit(1 if errors else 0)
