#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A report as the command line writes it, and the stored one, against docs/use/report.schema.json and docs/use/report.md.

    report_schema.py SOURCE_DIR INTRAWARPD INTRAWARP

The keywords that the schema uses are checked here, so that nothing beyond Python is needed; an unknown keyword is an
error. A report with planted faults must fail.
"""
import copy
import json
import re
import subprocess
import sys
import tempfile

SOURCE, INTRAWARPD, INTRAWARP = sys.argv[1:4]
TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
NOTES = {"$schema", "title", "description", "definitions"}


def is_of(value, name):
    if name in ("number", "integer"):
        kinds = int if name == "integer" else (int, float)
        return isinstance(value, kinds) and not isinstance(value, bool)
    return isinstance(value, TYPES[name])


def errors_of(value, schema, root, path="report"):
    """Every violation, as a line."""
    if "$ref" in schema:
        return errors_of(value, root["definitions"][schema["$ref"].rsplit("/", 1)[1]], root, path)
    found = []
    for keyword, rule in schema.items():
        if keyword in NOTES:
            continue
        if keyword == "type":
            names = rule if isinstance(rule, list) else [rule]
            if not any(is_of(value, name) for name in names):
                found.append(f"{path}: is no {' or '.join(names)}")
        elif keyword == "enum":
            if value not in rule:
                found.append(f"{path}: {value!r} is none of {rule}")
        elif keyword == "const":
            if value != rule:
                found.append(f"{path}: is not {rule}")
        elif keyword == "anyOf":
            if all(errors_of(value, each, root, path) for each in rule):
                found += errors_of(value, rule[0], root, path)
        elif keyword == "pattern":
            if isinstance(value, str) and not re.search(rule, value):
                found.append(f"{path}: does not match {rule}")
        elif keyword in ("minItems", "maxItems"):
            if isinstance(value, list) and (len(value) < rule if keyword == "minItems" else len(value) > rule):
                found.append(f"{path}: {keyword} is {rule}")
        elif keyword == "items":
            if isinstance(value, list):
                for i, each in enumerate(value):
                    found += errors_of(each, rule, root, f"{path}[{i}]")
        elif keyword == "required":
            if isinstance(value, dict):
                found += [f"{path}: {name} is missing" for name in rule if name not in value]
        elif keyword == "properties":
            if isinstance(value, dict):
                for name, each in rule.items():
                    if name in value:
                        found += errors_of(value[name], each, root, f"{path}.{name}")
        elif keyword == "additionalProperties":
            if isinstance(value, dict):
                for name in value.keys() - schema.get("properties", {}).keys():
                    found += [f"{path}: {name} is unknown"] if rule is False else errors_of(
                        value[name], rule, root, f"{path}.{name}")
        else:
            sys.exit(f"the schema uses {keyword}, which this test does not know")
    return found


def planted(report):
    """Reports that are wrong, each in one way."""
    def change(edit):
        wrong = copy.deepcopy(report)
        edit(wrong)
        return wrong
    yield "a name is missing", change(lambda r: r.pop("reason_details"))
    yield "a name is new", change(lambda r: r.update(surprise=1))
    yield "a word for a number", change(lambda r: r["similarity"]["after"].update(ncc="high"))
    yield "another verdict", change(lambda r: r.update(verdict="fine"))
    yield "a stage without its second layer", change(lambda r: r["stages"][0].pop("second_layer_fraction"))
    yield "a matrix of three rows", change(lambda r: r["matrix"].pop())
    yield "a reason without its cause", change(lambda r: r["reason_details"].append({"message": "x"}))


def run(*arguments):
    return subprocess.run((INTRAWARP, *arguments), check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          text=True).stdout


def make_reports(folder):
    """Of auto and of named stages, as written and as stored."""
    with subprocess.Popen((INTRAWARPD, "--listen=127.0.0.1:0", "--http=127.0.0.1:0", "--device=cpu"),
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            address = re.search(r"grpc=(\S+)", server.stdout.readline()).group(1)
            run("phantom", f"--out={folder}", "--size=24x24x18")
            for method in ("auto", "rigid", "log-demons", "search,ffd --metric=ssd --sliding"):
                name = run(f"--server={address}", "register", f"--fixed={folder}/fixed.nii.gz",
                           f"--moving={folder}/moving.nii.gz", f"--report={folder}/report.json",
                           *f"--method={method}".split()).strip()
                with open(f"{folder}/report.json", encoding="utf-8") as file:
                    yield f"{method}, written", json.load(file)
                yield f"{method}, stored", json.loads(
                    run(f"--server={address}", "transform", "show", name, "--json"))["report"]
        finally:
            server.terminate()


def main():
    with open(f"{SOURCE}/docs/use/report.schema.json", encoding="utf-8") as file:
        schema = json.load(file)
    with open(f"{SOURCE}/docs/use/report.md", encoding="utf-8") as file:
        document = file.read()
    failures = [f"docs/use/report.md does not name {name}" for name in schema["properties"] if f"`{name}`" not in document]
    with tempfile.TemporaryDirectory() as folder:
        reports = list(make_reports(folder))
    for name, report in reports:
        failures += [f"{name}: {error}" for error in errors_of(report, schema, schema)]
        if is_of(report["stages"][-1]["second_layer_fraction"], "number") != ("--sliding" in name):
            failures.append(f"{name}: second_layer_fraction is a number with --sliding, and null without")
    for name, wrong in planted(reports[0][1]):
        if not errors_of(wrong, schema, schema):
            failures.append(f"not found: {name}")
    for failure in failures:
        print(failure, file=sys.stderr)
    sys.exit(1 if failures else 0)


main()
