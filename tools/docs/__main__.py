"""``python -m tools.docs``: render every page again, in place."""

from __future__ import annotations

import sys

from tools.docs.pages import ROOT, pages, render
from tools.docs.sandbox import CommandError


def main() -> int:
    """Write the pages that differ; return 1 if a command of a page fails."""
    for page in pages():
        text = page.read_text(encoding="utf-8")
        try:
            rendered = render(text)
        except CommandError as error:
            sys.stderr.write(f"{page.relative_to(ROOT)}: {error}\n")
            return 1
        if rendered != text:
            page.write_text(rendered, encoding="utf-8")
            sys.stdout.write(f"wrote {page.relative_to(ROOT)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
