// Open pages in headless Chromium at two widths, light and dark, and write a screenshot of each.
// A problem is: a finding of axe-core, an error in the browser's console, a page that scrolls
// sideways, a page that lacks content without scripts, a disclosure that the refresh closes.
//   node check.mjs OUT NAME=URL...
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { chromium } from "playwright-core";

const FLAGS = [
  "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync",
];
const SIZES = [{ width: 1440, height: 900 }, { width: 390, height: 844 }];
const SCHEMES = ["light", "dark"];
const RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];
const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

const [output, ...pages] = process.argv.slice(2);
const problems = [];
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: FLAGS, chromiumSandbox: false,
});

async function open(url, options = {}) {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  const errors = [];
  page.on("console", message => {
    if (["error", "warning"].includes(message.type())) errors.push(message.text());
  });
  page.on("pageerror", error => errors.push(String(error)));
  await page.goto(url, { waitUntil: "load" });
  return { context, page, errors };
}

async function look(page, name) {
  for (const size of SIZES) {
    await page.setViewportSize(size);
    for (const colorScheme of SCHEMES) {
      await page.emulateMedia({ colorScheme });
      const label = `${name}-${size.width}-${colorScheme}`;
      await page.screenshot({ path: join(output, `${label}.png`) });
      // Open, because axe-core skips what is folded.
      await page.evaluate(() => document.querySelectorAll("details").forEach(d => (d.open = true)));
      const found = await page.evaluate(tags => globalThis.axe.run(document, { runOnly: tags }), RULES);
      for (const { id, help, nodes } of found.violations)
        problems.push(`${label}: ${id}: ${help}: ${nodes.slice(0, 3).map(n => n.html).join(" | ")}`);
      const excess = await page.evaluate(() =>
        document.documentElement.scrollWidth - document.documentElement.clientWidth);
      if (excess > 0) problems.push(`${label}: ${excess} px wider than the screen`);
      await page.evaluate(() => document.querySelectorAll("details").forEach(d => (d.open = false)));
    }
  }
}

async function keepsFocus(page, url, name) {
  const summary = page.locator("#content section > details > summary").last();
  if (!(await summary.count())) return;
  await summary.focus();
  await page.keyboard.press("Enter");
  const text = await summary.innerText();
  // The second response has been applied when the third is requested.
  for (let count = 0; count < 3; count++) await page.waitForRequest(url);
  const shown = await page.evaluate(() => [
    document.activeElement.innerText, document.activeElement.parentElement.open]);
  if (shown[0] !== text || !shown[1]) problems.push(`${name}: the refresh loses the disclosure`);
}

// Without numbers, which change.
async function headingsOf(page) {
  const texts = await page.locator("h1, h2, h3").allInnerTexts();
  return texts.join(", ").replace(/[0-9.]+/g, "#");
}

for (const pair of pages) {
  const at = pair.indexOf("=");
  const [name, url] = [pair.slice(0, at), pair.slice(at + 1)];
  const { context, page, errors } = await open(url);
  await page.evaluate(AXE); // through the debugger, which the page's policy does not restrict
  await look(page, name);
  if (pair === pages[0]) await keepsFocus(page, url, name);
  const headings = await headingsOf(page);
  problems.push(...errors.map(text => `${name}: browser: ${text}`));
  await context.close();

  const plain = await open(url, { javaScriptEnabled: false });
  const plainHeadings = await headingsOf(plain.page);
  if (plainHeadings !== headings)
    problems.push(`${name}: without scripts: ${plainHeadings} instead of ${headings}`);
  await plain.context.close();
}
await browser.close();
for (const problem of problems) console.error(problem);
console.log(`${pages.length} pages, ${problems.length} problems, screenshots in ${output}`);
process.exit(problems.length ? 1 : 0);
