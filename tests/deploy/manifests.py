#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes manifests, rendered by kubectl, and compose.yaml, as far as they can be checked without a cluster.

    manifests.py SOURCE_DIR INTRAWARPD

Names that refer to each other agree, the pod runs without privileges, its grace period is longer than the drain, and
intrawarpd takes the configurations. Nothing here asks an API server; kubernetes_schema checks kinds and fields.
"""
import json
import re
import shutil
import subprocess
import sys
import tempfile

import yaml

SOURCE, INTRAWARPD = sys.argv[1:3]
OVERLAYS = ("base", "gpu", "monitoring", "monitoring-cpu")
errors = []


def expect(condition, message):
    if not condition:
        errors.append(message)


def render(overlay):
    text = subprocess.run(("kubectl", "kustomize", f"{SOURCE}/deploy/kubernetes/{overlay}"), check=True,
                          stdout=subprocess.PIPE, text=True).stdout
    return [document for document in yaml.safe_load_all(text) if document]


def of_kind(documents, kind):
    return [document for document in documents if document["kind"] == kind]


def seconds(duration):
    number, unit = re.fullmatch(r"(\d+)(s|m)", duration).groups()
    return int(number) * (60 if unit == "m" else 1)


def check_configuration(where, text):
    """What intrawarpd itself says, on this machine's device, with a state directory and secrets that exist."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/intrawarpd.conf"
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        subprocess.run(("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=test",
                        "-keyout", f"{folder}/tls.key", "-out", f"{folder}/tls.crt"),
                       check=True, stderr=subprocess.DEVNULL)
        with open(f"{folder}/tokens", "w", encoding="utf-8") as file:
            file.write(f"or3 frame sha256:{'0' * 64}\n")
        here = [f"--{flag}={folder}/{name}" for flag, name in
                (("state_dir", ""), ("tls_cert", "tls.crt"), ("tls_key", "tls.key"), ("tokens", "tokens"))]
        result = subprocess.run((INTRAWARPD, f"--config={path}", *here, "--device=cpu", "--check_config"),
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        expect(result.returncode == 0, f"{where}: {result.stdout}")


def check_pod(where, pod, configuration):
    drain = seconds(re.search(r"^drain_timeout = (\S+)$", configuration, re.M).group(1))
    # Five seconds for the transport, and what the disk needs.
    expect(pod["terminationGracePeriodSeconds"] >= drain + 10, f"{where}: the grace period is shorter than the drain")
    security = pod["securityContext"]
    expect(security["runAsNonRoot"] and security["runAsUser"] == 10001, f"{where}: runs as root")
    expect(security["seccompProfile"]["type"] == "RuntimeDefault", f"{where}: has no seccomp profile")
    expect(pod["automountServiceAccountToken"] is False, f"{where}: has a token for the cluster")
    (container,) = pod["containers"]
    rights = container["securityContext"]
    expect(rights["readOnlyRootFilesystem"] and not rights["allowPrivilegeEscalation"], f"{where}: may change itself")
    expect(rights["capabilities"] == {"drop": ["ALL"]}, f"{where}: has capabilities")
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for key, name in (("listen", "grpc"), ("http", "http")):
        value = re.search(rf"^{key} = \S+:(\d+)$", configuration, re.M).group(1)
        expect(ports[name] == int(value), f"{where}: port {name} is not that of the configuration")
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        action = container[probe].get("httpGet") or container[probe]["tcpSocket"]
        expect(action["port"] == "http", f"{where}: {probe} asks another port than the one that always answers")
    # A Burstable pod whose request is its limit is the last that the node evicts for memory.
    resources = container["resources"]
    expect(resources["requests"]["memory"] == resources["limits"]["memory"], f"{where}: memory may be taken away")
    volumes = {volume["name"] for volume in pod["volumes"]}
    return container, ports, volumes


def shipped_rules():
    """Of each group, as deploy/prometheus has them."""
    rules = []
    for name in ("recording.yml", "alerts.yml"):
        with open(f"{SOURCE}/deploy/prometheus/{name}", encoding="utf-8") as file:
            rules += [group["rules"] for group in yaml.safe_load(file)["groups"]]
    return rules


def check_overlay(overlay):
    documents = render(overlay)
    names = {(document["kind"], document["metadata"]["name"]) for document in documents}
    expect(len(names) == len(documents), f"{overlay}: two objects of one name")
    for document in documents:
        if document["kind"] != "Namespace":
            expect(document["metadata"]["namespace"] == "intrawarp", f"{overlay}: {document['kind']} has no namespace")
    (stateful,) = of_kind(documents, "StatefulSet")
    (config,) = of_kind(documents, "ConfigMap")
    spec = stateful["spec"]
    configuration = config["data"]["intrawarpd.conf"]
    check_configuration(overlay, configuration)
    container, ports, volumes = check_pod(overlay, spec["template"]["spec"], configuration)
    volumes |= {claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]}
    for mount in container["volumeMounts"]:
        expect(mount["name"] in volumes, f"{overlay}: {mount['name']} is not a volume")
    state = re.search(r"^state_dir = (\S+)$", configuration, re.M).group(1)
    expect(state in [mount["mountPath"] for mount in container["volumeMounts"]], f"{overlay}: the state is not kept")
    (map_volume,) = [volume for volume in spec["template"]["spec"]["volumes"] if "configMap" in volume]
    expect(("ConfigMap", map_volume["configMap"]["name"]) in names, f"{overlay}: the configuration is not there")
    expect(("ServiceAccount", spec["template"]["spec"]["serviceAccountName"]) in names, f"{overlay}: no service account")

    labels = spec["template"]["metadata"]["labels"].items()
    services = of_kind(documents, "Service")
    expect(("Service", spec["serviceName"]) in names, f"{overlay}: the set has no service")
    for service in services:
        expect(service["spec"]["clusterIP"] == "None", f"{overlay}: {service['metadata']['name']} is not headless")
        expect(service["spec"]["selector"].items() <= labels, f"{overlay}: {service['metadata']['name']} finds no pod")
        for port in service["spec"]["ports"]:
            expect(ports[port["targetPort"]] == port["port"], f"{overlay}: {service['metadata']['name']}: wrong port")
    (budget,) = of_kind(documents, "PodDisruptionBudget")
    expect(budget["spec"]["selector"]["matchLabels"].items() <= labels, f"{overlay}: the budget covers no pod")
    expect(budget["spec"]["maxUnavailable"] == 0, f"{overlay}: the budget allows evictions")
    (policy,) = of_kind(documents, "NetworkPolicy")
    expect(policy["spec"]["egress"] == [] and "Egress" in policy["spec"]["policyTypes"], f"{overlay}: something may go out")
    for rule in policy["spec"]["ingress"]:
        for port in rule["ports"]:
            expect(port["port"] in ports, f"{overlay}: the policy names another port")
    gpus = container["resources"]["limits"].get("nvidia.com/gpu", 0)
    expect(gpus == (0 if overlay in ("base", "monitoring-cpu") else 1), f"{overlay}: {gpus} GPUs")
    for monitor in of_kind(documents, "ServiceMonitor"):
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        found = [service for service in services if wanted <= service["metadata"]["labels"].items()]
        expect(len(found) == 1, f"{overlay}: the monitor finds {len(found)} services")
        for endpoint in monitor["spec"]["endpoints"]:
            expect(endpoint["port"] in [port["name"] for port in found[0]["spec"]["ports"]], f"{overlay}: wrong endpoint")
    is_watched = overlay.startswith("monitoring")
    expect(bool(of_kind(documents, "ServiceMonitor")) == is_watched, f"{overlay}: monitor or none")
    rules = [group["rules"] for rule in of_kind(documents, "PrometheusRule") for group in rule["spec"]["groups"]]
    expect(rules == (shipped_rules() if is_watched else []), f"{overlay}: its rules are not those of deploy/prometheus: run "
           "deploy/prometheus/make_prometheusrule")


def check_orthanc(services):
    with open(f"{SOURCE}/deploy/orthanc/orthanc.json", encoding="utf-8") as file:
        pacs = json.load(file)
    for port in (pacs["DicomPort"], pacs["HttpPort"]):
        expect(f"127.0.0.1:{port}:{port}" in services["orthanc"]["ports"], f"compose.yaml: orthanc: no port {port}")
    expect(f"orthanc:{pacs['StorageDirectory']}" in services["orthanc"]["volumes"], "compose.yaml: orthanc keeps nothing")
    for title, host, _ in pacs["DicomModalities"].values():
        expect(re.fullmatch(r"[A-Z0-9_-]{1,16}", title), f"orthanc.json: {title} is not a title of an application entity")
        expect(host in services, f"orthanc.json: {host} is not a service")


def check_compose():
    with open(f"{SOURCE}/deploy/compose.yaml", encoding="utf-8") as file:
        compose = yaml.safe_load(file)
    volumes = set(compose["volumes"])
    for name, service in compose["services"].items():
        for mount in service.get("volumes", []):
            source = mount.split(":")[0]
            if source.startswith("./"):
                subprocess.run(("test", "-e", f"{SOURCE}/deploy/{source}"), check=True)
            else:
                expect(source in volumes, f"compose.yaml: {name}: {source} is not a volume")
        for port in service.get("ports", []):
            expect(port.startswith("127.0.0.1:"), f"compose.yaml: {name}: {port} is open to the network")
    service = compose["services"]["intrawarp"]
    flags = [flag for flag in service["command"] if not flag.startswith("--state_dir=")]
    drain = seconds(next(flag for flag in flags if flag.startswith("--drain_timeout=")).split("=")[1])
    expect(seconds(service["stop_grace_period"]) >= drain + 10, "compose.yaml: the server is killed while it drains")
    result = subprocess.run([INTRAWARPD, *flags, "--device=cpu", "--check_config"], stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)
    expect(result.returncode == 0, f"compose.yaml: {result.stdout}")
    check_orthanc(compose["services"])
    if shutil.which("docker-compose") is None:
        return
    for files in (["compose.yaml"], ["compose.yaml", "compose.gpu.yaml"]):
        arguments = [f"--file={SOURCE}/deploy/{file}" for file in files]
        result = subprocess.run(["docker-compose", *arguments, "config", "-q"], stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True)
        expect(result.returncode == 0, f"{files}: {result.stdout}")


if shutil.which("kubectl") is None:
    print("manifests: Skipped\nkubectl is not installed\n[  SKIPPED ] manifests (0 ms)")
    sys.exit(77)
for each in OVERLAYS:
    check_overlay(each)
check_compose()
for error in errors:
    print(error, file=sys.stderr)
sys.exit(1 if errors else 0)
