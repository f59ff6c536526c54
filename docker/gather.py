#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Gathers the root file system of an image that holds programs and what they need, and nothing else.

    gather.py --out=DIR [--revision=R] [--sections=NAME,...] [--folder=PATH:MODE:UID]... PROGRAM...

Copies the programs, every shared library that the loader takes for them, the data (/usr/share) of the packages that the
sections of deploy/packages-debian12.txt list, and the copyright file of each package that a copied file belongs to. Adds
users (root, intrawarp 10001), name resolution, /tmp, dpkg's record of each package, as scanners read it, and an SBOM
(SPDX 2.3, JSON) at /usr/share/doc/intrawarp/sbom.spdx.json. Runs on the Debian that the programs were built on.
Prints what the image is made of, largest first.
"""
import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys

USERS = "root:x:0:0:root:/:/usr/sbin/nologin\nintrawarp:x:10001:10001::/var/lib/intrawarp:/usr/sbin/nologin\n"
GROUPS = "root:x:0:\nintrawarp:x:10001:\n"
NAMES = "passwd: files\ngroup: files\nhosts: files dns\nservices: files\n"
# Documentation and what only packagers read.
NOT_DATA = ("/usr/share/doc/", "/usr/share/man/", "/usr/share/locale/", "/usr/share/lintian/", "/usr/share/bug/",
            "/usr/share/fontconfig/")
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def run(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def libraries(program):
    """The paths under which the loader takes the libraries of a program, the loader's own among them."""
    paths = []
    for line in run("ldd", program).splitlines():
        if "not found" in line:
            sys.exit(f"gather.py: {program}: {line.strip()}")
        match = re.search(r"(/\S+) \(0x", line)
        if match:
            paths.append(match.group(1))
    return paths


def owner(path):
    """The package of a file, whose path dpkg may know with or without /usr; None for a file of no package."""
    real = os.path.realpath(path)
    shorter = real[len("/usr"):] if real.startswith("/usr/lib") else real
    for candidate in (real, shorter, path):
        found = subprocess.run(("dpkg-query", "-S", candidate), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                               text=True)
        if found.returncode == 0:
            return found.stdout.splitlines()[0].rsplit(": ", 1)[0].split(",")[0].split(":")[0]
    return None


def data_files(package):
    for path in run("dpkg-query", "-L", package).splitlines():
        if path.startswith("/usr/share/") and not path.startswith(NOT_DATA) and os.path.isfile(path):
            yield path


class Image:
    def __init__(self, out):
        self.out = out
        self.bytes_of = {}  # by package; "" for ours
        for folder in ("usr/bin", "usr/lib", "usr/lib64", "usr/sbin", "etc", "proc", "sys", "dev", "run"):
            os.makedirs(os.path.join(out, folder), exist_ok=True)
        for name in ("bin", "lib", "lib64", "sbin"):
            os.symlink(f"usr/{name}", os.path.join(out, name))
        self.folder("/tmp", 0o1777, 0)

    def folder(self, path, mode, uid):
        os.makedirs(self.out + path)
        os.chmod(self.out + path, mode)
        os.chown(self.out + path, uid, uid)

    def copy(self, path, package):
        """The file under its path, and with the symbolic links on the way to it."""
        while True:
            target = os.path.realpath(os.path.dirname(path)) + "/" + os.path.basename(path)
            place = self.out + target
            if os.path.lexists(place):
                return
            os.makedirs(os.path.dirname(place), exist_ok=True)
            shutil.copy2(target, place, follow_symlinks=False)
            if not os.path.islink(target):
                self.bytes_of[package] = self.bytes_of.get(package, 0) + os.path.getsize(target)
                return
            path = os.path.join(os.path.dirname(target), os.readlink(target))

    def write(self, path, text):
        os.makedirs(os.path.dirname(self.out + path), exist_ok=True)
        with open(self.out + path, "w", encoding="utf-8") as file:
            file.write(text)


def spdx_package(name):
    fields = "${Version}\t${Architecture}\t${source:Package}\t${source:Version}\t${Homepage}"
    version, arch, source, source_version, homepage = run("dpkg-query", "-W", f"-f={fields}", name).split("\t")
    return {
        "SPDXID": f"SPDXRef-{re.sub('[^A-Za-z0-9.-]', '-', name)}",
        "name": name,
        "versionInfo": version,
        "supplier": "Organization: Debian",
        "homepage": homepage or "NOASSERTION",
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": "NOASSERTION",
        "copyrightText": "NOASSERTION",
        "comment": f"its licences stand in /usr/share/doc/{name}/copyright",
        "sourceInfo": f"built from {source} {source_version}",
        "externalRefs": [{
            "referenceCategory": "PACKAGE-MANAGER",
            "referenceType": "purl",
            "referenceLocator": f"pkg:deb/debian/{name}@{version}?arch={arch}&distro=debian-12",
        }],
    }


def program_package(path, revision):
    with open(path, "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    return {
        "SPDXID": f"SPDXRef-{os.path.basename(path)}",
        "name": os.path.basename(path),
        "versionInfo": revision,
        "supplier": "NOASSERTION",
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": "Apache-2.0",
        "licenseDeclared": "Apache-2.0",
        "copyrightText": "NOASSERTION",
        "checksums": [{"algorithm": "SHA256", "checksumValue": digest}],
        "comment": "Header-only libraries are compiled in and hence not listed; the CUDA runtime, where built, likewise.",
    }


def sbom(programs, packages, revision):
    ours = [program_package(path, revision) for path in programs]
    theirs = [spdx_package(name) for name in sorted(packages)]
    digest = hashlib.sha256(json.dumps([ours, theirs]).encode()).hexdigest()
    relations = [("SPDXRef-DOCUMENT", "DESCRIBES", program["SPDXID"]) for program in ours]
    relations += [(program["SPDXID"], "DEPENDS_ON", package["SPDXID"]) for program in ours for package in theirs]
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"intrawarp-{revision}",
        "documentNamespace": f"urn:intrawarp:sbom:{digest}",
        "creationInfo": {"created": run("date", "-u", "+%Y-%m-%dT%H:%M:%SZ").strip(), "creators": ["Tool: gather.py"]},
        "packages": ours + theirs,
        "relationships": [{"spdxElementId": a, "relationshipType": kind, "relatedSpdxElement": b}
                          for a, kind, b in relations],
    }


def parse_arguments():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--out", required=True)
    parser.add_argument("--revision", default="unknown")
    parser.add_argument("--sections", default="")
    parser.add_argument("--folder", action="append", default=[])
    parser.add_argument("programs", nargs="+")
    return parser.parse_args()


def main():
    options = parse_arguments()
    image = Image(options.out)
    for program in options.programs:
        image.copy(program, "")
        for library in libraries(program):
            package = owner(library)
            if package is None:
                sys.exit(f"gather.py: {library} belongs to no package")
            image.copy(library, package)
    sections = [name for name in options.sections.split(",") if name]
    for package in run("sh", f"{ROOT}/docker/packages-of", *sections).split():
        for path in data_files(package):
            image.copy(path, package)

    packages = [name for name in image.bytes_of if name]
    for package in packages:
        image.copy(f"/usr/share/doc/{package}/copyright", package)
        image.write(f"/var/lib/dpkg/status.d/{package}", run("dpkg-query", "-s", package))
    image.write("/etc/passwd", USERS)
    image.write("/etc/group", GROUPS)
    image.write("/etc/nsswitch.conf", NAMES)
    image.copy("/etc/debian_version", "base-files")
    image.copy("/usr/lib/os-release", "base-files")
    os.symlink("../usr/lib/os-release", f"{options.out}/etc/os-release")
    image.write("/usr/share/doc/intrawarp/sbom.spdx.json",
                json.dumps(sbom(options.programs, packages, options.revision), indent=1) + "\n")
    shutil.copy(f"{ROOT}/LICENSE", f"{options.out}/usr/share/doc/intrawarp/copyright")
    for spec in options.folder:
        path, mode, uid = spec.split(":")
        image.folder(path, int(mode, 8), int(uid))

    print(f"{options.out}: {sum(image.bytes_of.values()) / 1e6:.1f} MB")
    for package, size in sorted(image.bytes_of.items(), key=lambda item: -item[1])[:12]:
        print(f"{size / 1e6:10.1f} MB  {package or 'programs of ours'}")


main()
