"""Files of the site that the runbooks of all services make: its configuration and its home page."""

from __future__ import annotations

from collections.abc import Iterable

from runbooks.local_notes import FOLDER
from runbooks.markdown import INDEX, bullets, document
from runbooks.service import HEADER
from slos import generated_yaml

CONFIGURATION = "mkdocs.yml"
HOME = f"runbooks/{INDEX}"

# MkDocs derives the navigation from the folders, so that it fits any set of services.  TechDocs
# adds its own plugin, and ignores keys that it does not support.
_MKDOCS = f"""\
site_name: Runbooks
docs_dir: runbooks
exclude_docs: /*/{FOLDER}/

theme:
  name: material
  features: [content.code.copy, navigation.indexes, navigation.top]

markdown_extensions:
  - toc:
      permalink: true
  - pymdownx.superfences:
      custom_fences:
        - name: mermaid
          class: mermaid
          format: !!python/name:pymdownx.superfences.fence_code_format

validation:
  links:
    anchors: warn
"""


def site_files(services: Iterable[str], *, version: str) -> dict[str, str]:
    """Return the files of the site, by path below the output folder."""
    made = f"{version} from SLO files. Do not edit."
    home = document(
        [
            f"{HEADER}{made} -->",
            "# Runbooks",
            "Choose the service that the label `service` of the alert names.",
            bullets(f"[{each}]({each}/{INDEX})" for each in sorted(services)),
        ]
    )
    header = f"# Runbooks as a site, for MkDocs and TechDocs.\n{generated_yaml.HEADER}{made}"
    return {CONFIGURATION: f"{header}\n\n{_MKDOCS}", HOME: home}
