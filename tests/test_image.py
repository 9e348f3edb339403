"""The image's inputs: locks that agree with pyproject.toml, the Containerfile, its context."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.installed_wheel import ROOT, closure, requirements
from tools import sbom
from tools.containerfile import ContainerfileError, included, parse

IMAGE = ROOT / "deploy/image"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCKS = {
    "requirements.txt": [*requirements("exporter", "otlp")],
    "build-requirements.txt": [*map(Requirement, PROJECT["build-system"]["requires"])],
}


@pytest.mark.parametrize("name", LOCKS)
def test_locks_have_what_pyproject_requires(name: str) -> None:
    lock = sbom.locked((IMAGE / name).read_text())
    for one in LOCKS[name]:
        version, _ = lock[canonicalize_name(one.name)]
        assert one.specifier.contains(version), f"{one} is locked as {version}. Fix: make lock"
    needed = {name for name in closure(LOCKS[name]) if name != "tokenslo"}
    assert needed <= {*lock}, "Fix: make lock"


@pytest.mark.parametrize("name", LOCKS)
def test_locks_have_nothing_else_and_a_hash_of_every_file(name: str) -> None:
    lock = sbom.locked((IMAGE / name).read_text())
    assert {*lock} == {*closure(LOCKS[name])}, "Fix: make lock"
    assert all(hashes for _, hashes in lock.values())
    assert "://" not in (IMAGE / name).read_text()


def test_the_image_runs_as_a_user_without_rights_and_starts_the_sidecar() -> None:
    build, image = parse((IMAGE / "Containerfile").read_text())
    assert (build.name, image.base, image.user) == ("build", "scratch", "65532:65532")
    assert (*image.entrypoint, *image.command) == ("/opt/tokenslo/bin/tokenslo", "exporter")
    installs = [rest for word, rest in build.steps if word == "RUN" and "pip" in rest]
    commands = [part for rest in installs for part in rest.split("&&") if " install " in part]
    for command in commands:
        if "bin/pip" in command:
            assert "--require-hashes" in command or "--no-index" in command


def test_an_unknown_instruction_is_an_error() -> None:
    with pytest.raises(ContainerfileError, match="HEALTHCHECK is not implemented"):
        parse("FROM scratch\nHEALTHCHECK NONE\n")


def test_the_context_is_what_the_wheel_is_built_from() -> None:
    files = {*included(ROOT)}
    target = PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]
    for name in target["only-include"]:
        assert any(each == name or each.startswith(f"{name}/") for each in files), name
    assert not [each for each in files if each.startswith(("tests/", ".git", ".venv"))]


METADATA = "Metadata-Version: 2.4\nName: {}\nVersion: {}\nLicense-Expression: MIT\n\ntext\n"


def image_root(folder: Path, **distributions: str) -> Path:
    """Write what the bill of materials reads of an image."""
    packages = folder / "opt/tokenslo/lib/python3.11/site-packages"
    for name, version in distributions.items():
        (packages / f"{name}-{version}.dist-info").mkdir(parents=True)
        text = METADATA.format(name, version)
        (packages / f"{name}-{version}.dist-info/METADATA").write_text(text)
    (folder / "var/lib/dpkg/status.d").mkdir(parents=True)
    status = "Package: libc6\nVersion: 2.36-9+deb12u1\nArchitecture: amd64\n"
    (folder / "var/lib/dpkg/status.d/libc6").write_text(status)
    (folder / "etc").mkdir()
    (folder / "etc/os-release").write_text('ID=debian\nVERSION_ID="12"\n')
    return folder


LOCK = "some-lib==1.2 \\\n    --hash=sha256:" + "a" * 64 + "\n    # via tokenslo\n"


def test_the_bill_of_materials_lists_every_package_and_is_reproducible(tmp_path: Path) -> None:
    root = image_root(tmp_path, tokenslo="0.1.0", Some_Lib="1.2")
    text = sbom.document(root, LOCK, 0)
    assert text == sbom.document(root, LOCK, 0)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    found = json.loads(text)
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.6")
    assert found["metadata"]["component"]["purl"] == "pkg:pypi/tokenslo@0.1.0"
    assert [each["purl"] for each in found["components"]] == [
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u1?arch=amd64&distro=debian-12",
        "pkg:pypi/some-lib@1.2",
    ]
    assert found["components"][1]["properties"][0]["value"] == "a" * 64
    unknown = text.replace('"bomFormat"', '"bomKind"')
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(unknown)


def test_a_library_of_another_version_than_locked_is_refused(tmp_path: Path) -> None:
    root = image_root(tmp_path, tokenslo="0.1.0", some_lib="1.3")
    with pytest.raises(SystemExit, match=r"some-lib 1\.3 is not in the lock\. Fix: lock it again"):
        sbom.document(root, LOCK, 0)
