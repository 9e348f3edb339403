"""Style, script and Content Security Policy of the status page."""

from __future__ import annotations

import hashlib
from base64 import b64encode

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #5b6470; --line: #d9dee4; --back: #fff;
  --card: #f6f8fa; --good: #12703a; --fair: #8a5a00; --bad: #b3261e }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e7eaee; --soft: #9aa4b0; --line: #333b45; --back: #14181d; --card: #1c2229;
    --good: #5fce8c; --fair: #e6b455; --bad: #ff8a80 } }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 76rem; padding: 1rem; background: var(--back); color: var(--ink);
  font: 15px/1.45 system-ui, sans-serif }
header { display: flex; flex-wrap: wrap; gap: .25rem 1rem; align-items: baseline }
h1 { font-size: 1.3rem; margin: 0 }
h2 { font-size: 1.05rem; margin: 2rem 0 .5rem }
h2 small, td small, .soft { color: var(--soft); font-weight: normal }
td small { display: block }
table { border-collapse: collapse; width: 100% }
th { text-align: left; color: var(--soft); font-weight: 600; font-size: .85rem }
th, td { padding: .35rem .8rem .35rem 0; border-bottom: 1px solid var(--line); vertical-align: top }
td:first-child { min-width: 17rem }
td:first-child, td small { overflow-wrap: anywhere }
main { overflow-x: auto }
summary { color: var(--soft); cursor: pointer; padding: .35rem 0 }
code { font: .85em ui-monospace, monospace }
.good { color: var(--good) } .fair { color: var(--fair) } .bad { color: var(--bad) }
#lost { position: sticky; top: 0; padding: .4rem .8rem; background: var(--card);
  border-left: 4px solid var(--bad) }
@media (max-width: 46rem) {
  thead { display: none }
  tr { display: block; padding: .5rem 0; border-bottom: 1px solid var(--line) }
  td { display: block; border: 0; padding: .1rem 0 }
  td:first-child { font-weight: 600 }
  td:empty { display: none }
  td[data-name]:not(:first-child)::before { content: attr(data-name) ": "; color: var(--soft) } }
"""

# Updates the page in place, except while text is selected.
SCRIPT = """
const lost = document.getElementById("lost");
setInterval(async () => {
  if (document.hidden || !getSelection().isCollapsed) return;
  try {
    const text = await (await fetch("/", {headers: {Accept: "text/html"}})).text();
    const fresh = new DOMParser().parseFromString(text, "text/html").querySelector("main");
    const shown = document.querySelector("main");
    for (const open of shown.querySelectorAll("details[open]"))
      for (const each of fresh.querySelectorAll("details"))
        if (each.dataset.key === open.dataset.key) each.open = true;
    if (fresh.innerHTML !== shown.innerHTML) shown.replaceWith(fresh);
    lost.hidden = true;
  } catch { lost.hidden = false }
}, 2000);
"""


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        f"style-src {_hash(STYLE)}",
        f"script-src {_hash(SCRIPT)}",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
"""Allows only the page's own style and script: names from a server cannot become code."""
