#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus and Alertmanager (Debian's) watch a real server with the rules that are shipped.

    monitoring.py SOURCE_DIR INTRAWARPD INTRAWARP

Every expression of rules and dashboards is evaluated on the live scrape, and every selector in them must find series.
While the server is well no alert is active; late frames bring a page through the Alertmanager, and so does the server's
end. Nothing here depends on how fast the machine is: the test waits for conditions, for two minutes at most.
"""
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

from watching import Processes, Prometheus, get, is_nearly_full, read_ready, require, start_alertmanager, wait_for

SOURCE, INTRAWARPD, INTRAWARP = sys.argv[1:4]
# Words of PromQL that are followed by no metric's name of their own.
WORDS = set("""sum min max avg count by without on ignoring group_left group_right and or unless rate increase changes
absent histogram_quantile time vector count_over_time bool offset""".split())
# A server on the CPU without TLS has none of these.
ABSENT_HERE = {"intrawarp_device_memory_bytes", "intrawarp_tls_certificate_not_after_timestamp_seconds"}
# Slow frames are what a CPU makes, and the machine's own disk may be full; the other alerts have no excuse.
SLOW = "FramesSlow.*|FramesWait"


def fail(message):
    sys.exit(f"monitoring.py: {message}")


def dashboard_expressions():
    for path in sorted(glob.glob(f"{SOURCE}/deploy/grafana/dashboards/*.json")):
        with open(path, encoding="utf-8") as file:
            for panel in json.load(file)["panels"]:
                for target in panel.get("targets", []):
                    yield target["expr"].replace("$job", ".*").replace("$instance", ".*")


def selectors(expression):
    """The metrics that an expression names, each with its matchers."""
    bare = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", "", expression)
    bare = re.sub(r"\[[^]]*\]", "", bare)
    for name, matchers in re.findall(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\s*(\{[^}]*\})?", bare):
        if name not in WORDS:
            yield name + matchers


def run_client(server, *arguments):
    result = subprocess.run((INTRAWARP, f"--server={server}") + arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            text=True, timeout=300)
    return result.returncode, result.stdout


def check_expressions(prometheus):
    expressions = {rule["query"] for rule in prometheus.rules()} | set(dashboard_expressions())
    wanted = set()
    for expression in expressions:
        prometheus.query(expression)
        wanted |= set(selectors(expression))
    if len(wanted) < 40:
        fail(f"only {len(wanted)} selectors were found in {len(expressions)} expressions")
    wanted = {selector for selector in wanted if selector.split("{")[0] not in ABSENT_HERE}

    # A rate of the last minute ends when no frames come, so that a selector counts once it was found.
    missing = set(wanted)

    def found_all():
        missing.difference_update([selector for selector in missing if prometheus.query(f"count({selector})")])
        return not missing

    try:
        wait_for("series of every selector", found_all)
    except SystemExit:
        fail("no series for " + "; ".join(sorted(missing)))
    print(f"{len(expressions)} expressions, {len(wanted)} selectors with series")


def check_scrape(address):
    scrape = get(f"http://{address}/metrics")
    lint = subprocess.run(("promtool", "check", "metrics"), input=scrape, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True)
    if lint.returncode != 0 or lint.stdout:
        fail(f"promtool: {lint.stdout}")
    print(f"promtool: nothing wrong in {len(scrape)} bytes")


def firing(alertmanager, name):
    for alert in json.loads(get(f"http://{alertmanager}/api/v2/alerts")):
        if alert["labels"]["alertname"] == name:
            return {receiver["name"] for receiver in alert["receivers"]}
    return None


def check_page(alertmanager, name):
    receivers = wait_for(f"the alert {name}", lambda: firing(alertmanager, name))
    if receivers != {"pages"}:
        fail(f"{name} went to {receivers}")
    print(f"{name}: a page")


def check(folder, processes):
    os.mkdir(f"{folder}/state")
    server = processes.start("server", INTRAWARPD, "--listen=127.0.0.1:0", "--http=127.0.0.1:0", "--device=cpu",
                             f"--state_dir={folder}/state", stdout=subprocess.PIPE)
    ready = read_ready(server)
    alertmanager = start_alertmanager(processes, folder, f"{SOURCE}/deploy/alertmanager/alertmanager.yml")
    prometheus = Prometheus(processes, folder, {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [f"{SOURCE}/deploy/prometheus/{name}.yml" for name in ("recording", "alerts")],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]},
        "scrape_configs": [{"job_name": "intrawarp", "static_configs": [{"targets": [ready["http"]]}]}],
    })
    wait_for("a scrape", lambda: prometheus.query('up{job="intrawarp"} == 1'))

    # Frames that are in time, while Prometheus looks on.
    status, output = run_client(ready["grpc"], "phantom", f"--out={folder}/pair", "--size=24x24x18", "--spacing=13")
    if status:
        fail(output)
    os.mkdir(f"{folder}/frames")
    for i in range(8):
        shutil.copy(f"{folder}/pair/moving.nii.gz", f"{folder}/frames/{i}.nii.gz")
    navigate = ("navigate", f"--fixed={folder}/pair/fixed.nii.gz", f"--frames={folder}/frames", "--method=affine")
    status, output = run_client(ready["grpc"], *navigate, "--rate=2")
    if status:
        fail(output)
    check_expressions(prometheus)
    check_scrape(ready["http"])
    excused = SLOW + "|StateDiskNearlyFull" if is_nearly_full(folder) else SLOW
    active = prometheus.query(f'ALERTS{{alertname!~"{excused}"}}')
    if active:
        fail(f"alerts of a server that is well: {active}")

    # A deadline that no frame can meet.
    def miss_deadlines():
        run_client(ready["grpc"], *navigate, "--deadline_ms=1", "--rate=20")
        return firing(alertmanager, "FramesLateFastBurn")

    wait_for("late frames to be noticed", miss_deadlines)
    check_page(alertmanager, "FramesLateFastBurn")

    server.terminate()
    if server.wait(timeout=60) != 0:
        fail("the server's exit status is not 0")
    check_page(alertmanager, "ServerDown")


def main():
    require("prometheus", "promtool", "prometheus-alertmanager")
    with tempfile.TemporaryDirectory() as folder:
        processes = Processes(folder)
        try:
            check(folder, processes)
        finally:
            processes.stop_all()


main()
