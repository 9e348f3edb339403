"""``python -m tools.kubernetes``: write the limits of a scrape into ``deploy/``, and the examples.

Examples whose tool is not installed stay as they are.
"""

from __future__ import annotations

import sys

from tools.kubernetes.examples import EXAMPLES, RENDERED, MissingToolError
from tools.kubernetes.limit_files import ROOT, limit_files


def main() -> None:
    """Write the limits and the rendered examples that have changed."""
    for path, text in limit_files():
        (ROOT / path).write_text(text, encoding="utf-8")
    RENDERED.mkdir(exist_ok=True)
    for name, render in EXAMPLES.items():
        try:
            (RENDERED / f"{name}.yaml").write_text(render(), encoding="utf-8")
        except MissingToolError as missing:
            sys.stderr.write(f"{name} is not rendered: {missing}\n")


if __name__ == "__main__":
    main()
