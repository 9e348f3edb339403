"""Write the software bill of materials of an image as CycloneDX 1.6: ``sbom.py ROOT LOCK``.

ROOT is the image's root file system and LOCK the requirements file with hashes.  The output has no
random part and no time but SOURCE_DATE_EPOCH, so the same image gives the same bytes.
"""

from __future__ import annotations

import json
import os
import re
import sys
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from email import message_from_string
from email.message import Message
from pathlib import Path

PACKAGE = "tokenslo"
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_DNS, "tokenslo")


def canonical(name: str) -> str:
    """Return the name of a distribution as purl and PyPI write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def locked(text: str) -> dict[str, tuple[str, list[str]]]:
    """Return version and SHA-256 hashes by name, from a requirements file."""
    found: dict[str, tuple[str, list[str]]] = {}
    name = ""
    for line in text.splitlines():
        if pin := _PIN.match(line):
            name = canonical(pin[1])
            found[name] = (pin[2], [])
        if name:
            found[name][1].extend(_HASH.findall(line))
    return found


def _fields(path: Path) -> Message:
    return message_from_string(path.read_text(encoding="utf-8"))


def _debian(root: Path) -> Iterator[dict[str, object]]:
    release = dict(
        line.split("=", 1) for line in (root / "etc/os-release").read_text().splitlines() if line
    )
    distribution = f"debian-{release['VERSION_ID'].strip(chr(34))}"
    for path in sorted((root / "var/lib/dpkg/status.d").iterdir()):
        about = _fields(path)
        name, version, architecture = about["Package"], about["Version"], about["Architecture"]
        escaped = version.replace("+", "%2B").replace(":", "%3A").replace("~", "~")
        purl = f"pkg:deb/debian/{name}@{escaped}?arch={architecture}&distro={distribution}"
        yield {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


def _python(root: Path, lock: dict[str, tuple[str, list[str]]]) -> Iterator[dict[str, object]]:
    [packages] = root.glob("opt/tokenslo/lib/python*/site-packages")
    for path in sorted(packages.glob("*.dist-info/METADATA")):
        about = _fields(path)
        name, version = canonical(about["Name"]), about["Version"]
        purl = f"pkg:pypi/{name}@{version}"
        found: dict[str, object] = {
            "type": "application" if name == PACKAGE else "library",
            "bom-ref": purl,
            "name": name,
            "version": version,
            "purl": purl,
        }
        if license_ := about["License-Expression"]:
            found["licenses"] = [{"expression": license_}]
        if name != PACKAGE:
            if lock.get(name, ("", []))[0] != version:
                sys.exit(f"sbom: {name} {version} is not in the lock. Fix: lock it again.")
            # The lock has the hash of every platform's wheel; one of them is installed.
            found["properties"] = [
                {"name": "tokenslo:locked-sha256", "value": value} for value in lock[name][1]
            ]
        yield found


def document(root: Path, lock: str, epoch: int) -> str:
    """Return the document as JSON."""
    python = [*_python(root, locked(lock))]
    [main] = [each for each in python if each["name"] == PACKAGE]
    components = [*_debian(root), *(each for each in python if each is not main)]
    names = json.dumps([each["bom-ref"] for each in (main, *components)])
    content = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, names)}",
        "version": 1,
        "metadata": {
            "timestamp": f"{datetime.fromtimestamp(epoch, UTC):%Y-%m-%dT%H:%M:%SZ}",
            "component": main,
        },
        "components": components,
    }
    return json.dumps(content, indent=2) + "\n"


def main(root: str, lock: str) -> None:
    """Print the document."""
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    sys.stdout.write(document(Path(root), Path(lock).read_text(encoding="utf-8"), epoch))


if __name__ == "__main__":
    main(*sys.argv[1:])
