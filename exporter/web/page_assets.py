"""Style, script and Content Security Policy of the status page."""

from __future__ import annotations

import hashlib
from base64 import b64encode

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #57606b; --line: #d5dae0; --back: #fff;
  --card: #f5f7f9; --good: #11683a; --fair: #7d4e00; --bad: #b3261e; --fill: #3f6fb5;
  --link: #1f5fbf; --good-card: #e9f5ee; --fair-card: #fdf3dd; --bad-card: #fdeceb }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e7eaee; --soft: #a3adb9; --line: #363e49; --back: #14181d; --card: #1c2229;
    --good: #66d492; --fair: #ecbd60; --bad: #ff9289; --fill: #7fa8e6; --link: #8db8ff;
    --good-card: #16291f; --fair-card: #2d2412; --bad-card: #351a19 } }
* { box-sizing: border-box }
[hidden], .hidden { position: absolute; width: 1px; height: 1px; overflow: hidden;
  clip-path: inset(50%); white-space: nowrap }
[hidden] { display: none }
body { margin: 0 auto; max-width: 84rem; padding: .75rem 1rem 3rem; background: var(--back);
  color: var(--ink); font: 15px/1.4 system-ui, sans-serif }
p, h1, h2, h3, dl, dd, ul { margin: 0 }
a { color: var(--link) }
:focus-visible { outline: 2px solid var(--link); outline-offset: 2px }
small, .soft { color: var(--soft) }
small { font-size: .85rem; font-weight: normal }
.good { color: var(--good) } .fair { color: var(--fair) } .bad { color: var(--bad) }
header { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; align-items: baseline;
  margin-bottom: .6rem }
.brand a { color: inherit; font-weight: 700; text-decoration: none }
nav a + a { margin-left: .6rem }
#time { margin-left: auto }
#lost { position: sticky; top: 0; z-index: 1; padding: .5rem .8rem; background: var(--bad-card);
  border-left: .4rem solid var(--bad) }
h1 { padding: .55rem .9rem; font-size: 1.6rem; line-height: 1.25; border-radius: .4rem;
  overflow-wrap: anywhere }
h1.good { background: var(--good-card) } h1.fair { background: var(--fair-card) }
h1.bad { background: var(--bad-card) }
h2 { font-size: 1.05rem; margin: 1.1rem 0 .3rem }
h3 { font-size: 1rem; overflow-wrap: anywhere }
.answers { display: grid; grid-template-columns: repeat(3, 1fr); gap: .75rem; margin-top: .75rem }
.answer { padding: .55rem .9rem; background: var(--card); border-radius: .4rem; color: var(--ink) }
.answer h2 { margin: 0; font-size: .85rem; font-weight: 600; color: var(--soft) }
.short { font-size: 1.2rem; font-weight: 650; overflow-wrap: anywhere }
.good > .short { color: var(--good) } .fair > .short { color: var(--fair) }
.bad > .short { color: var(--bad) }
.answer ul { padding: 0; list-style: none; overflow-wrap: anywhere }
table { border-collapse: collapse; width: 100% }
caption { text-align: left; color: var(--soft); font-size: .85rem }
thead th { color: var(--soft); font-size: .85rem }
th { text-align: left; font-weight: 600 }
th, td { padding: .22rem .8rem .22rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; overflow-wrap: break-word }
tbody th { min-width: 15rem }
.line, td summary { white-space: nowrap }
tbody th, td small, th small { overflow-wrap: anywhere }
td small, th small { display: block; font-weight: normal }
code { font: .85em ui-monospace, monospace }
summary { cursor: pointer; padding: .2rem 0 }
td summary { padding: 0 }
details details { margin-left: 1rem }
td details { display: inline-block; vertical-align: top }
.links { columns: 16rem; padding-left: 1.2rem }
.links a { display: inline-block; padding: .15rem 0 }
.model { padding: .5rem .9rem .6rem; margin-bottom: .5rem; background: var(--card);
  border-radius: .4rem }
.tiles { display: grid; grid-template-columns: 3fr 3fr 1.6fr 1.4fr 1.6fr; gap: .25rem 1.75rem }
.tile { min-width: 0; overflow-wrap: anywhere }
dt { color: var(--soft); font-size: .85rem; font-weight: 600 }
.failing dt, .failing .value { color: var(--bad) }
.value b { font-weight: 650 }
.value { font-size: 1.05rem }
.value b { font-size: 1.3rem }
.value span + span { margin-left: .8rem }
.p50 b { font-weight: 400 }
.value .p95::before, .value .p50::before { content: ""; display: inline-block; width: .9rem;
  margin-right: .35rem; vertical-align: .3em; border-top: 2px solid var(--fill) }
.value .p50::before { border-top: 1px solid var(--soft) }
.plot { position: relative }
.top { position: absolute; top: 0; left: 0; font-size: .8rem; color: var(--soft) }
.chart { display: block; width: 100%; height: 6.5rem; border-bottom: 1px solid var(--line) }
.chart path { fill: none; stroke: var(--fill); stroke-width: 2; stroke-linejoin: round;
  stroke-linecap: round; vector-effect: non-scaling-stroke }
.chart .p50 { stroke: var(--soft); stroke-width: 1.25 }
.chart .limit { stroke: var(--ink); stroke-width: 1; stroke-dasharray: 4 4 }
.axis { display: flex; justify-content: space-between; font-size: .8rem; color: var(--soft) }
.axis .limit { border-top: 1px dashed var(--ink); line-height: 1.2; margin-top: .25rem }
.bar { display: block; width: 100%; height: .7rem; margin: .15rem 0 }
.track { fill: var(--line) } .fill { fill: var(--fill) } .full { fill: var(--fair) }
.bar .limit { stroke: var(--ink); stroke-width: 2; vector-effect: non-scaling-stroke }
.many .tiles { grid-template-columns: 3fr 3fr 2fr 1.6fr 2fr }
.many .chart { height: 2.2rem }
.many .axis, .many .top { display: none }
.many .value b { font-size: 1.05rem }
.many .value { font-size: .9rem }
@media (max-width: 60rem) {
  .tiles, .many .tiles { grid-template-columns: 1fr 1fr } }
@media (max-width: 46rem) {
  h1 { font-size: 1.25rem }
  .answers, .tiles, .many .tiles { grid-template-columns: 1fr }
  .tile { padding-top: .35rem }
  #time { margin-left: 0 }
  thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%) }
  tbody, tr, tbody th, td { display: block }
  tr { padding: .4rem 0; border-bottom: 1px solid var(--line) }
  tbody th, td { border: 0; padding: .05rem 0 }
  td:empty { display: none }
  td::before { content: attr(data-name) ": "; color: var(--soft) } }
"""

# Updates the page in place, except while text is selected; keeps open details and the focus.
SCRIPT = """
const find = (root, key) => [...root.querySelectorAll("[data-key]")]
  .find(each => each.dataset.key === key);
setInterval(async () => {
  if (document.hidden || !getSelection().isCollapsed) return;
  const lost = document.getElementById("lost");
  try {
    const text = await (await fetch(location.href, {headers: {Accept: "text/html"}})).text();
    const fresh = new DOMParser().parseFromString(text, "text/html");
    const shown = document.getElementById("content");
    for (const open of shown.querySelectorAll("details[open]")) {
      const same = find(fresh, open.dataset.key);
      if (same) same.open = true;
    }
    const focused = document.activeElement.closest("#content [data-key]");
    document.title = fresh.title;
    for (const id of ["time", "headline", "content"]) {
      const [old, now] = [document, fresh].map(each => each.getElementById(id));
      if (old.innerHTML !== now.innerHTML) old.replaceChildren(...now.childNodes);
    }
    if (focused)
      find(shown, focused.dataset.key)?.querySelector("summary").focus({preventScroll: true});
    lost.hidden = true;
  } catch { lost.hidden = false }
}, 5000);
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
