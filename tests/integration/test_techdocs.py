"""TechDocs' own plugin builds the site of the runbooks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples/chat"


@pytest.mark.long
def test_techdocs_builds_the_site_without_a_warning(tmp_path: Path) -> None:
    """TechDocs adds its plugin to the configuration, and a copy of README.md as index.md."""
    (tmp_path / "runbooks").symlink_to(EXAMPLE / "runbooks")
    config = (EXAMPLE / "mkdocs.yml").read_text(encoding="utf-8")
    (tmp_path / "mkdocs.yml").write_text(f"{config}\nplugins: [techdocs-core]\n", encoding="utf-8")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", "site"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    page = tmp_path / "site/chat/playbooks/kv-pressure/index.html"
    assert '<pre class="mermaid">' in page.read_text(encoding="utf-8")
    assert (tmp_path / "site/techdocs_metadata.json").exists()
