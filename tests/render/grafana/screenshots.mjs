// Draw dashboards in headless Chromium: node screenshots.mjs PROMETHEUS OUT DASHBOARD.json...
import { createServer } from 'node:http';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { basename, extname, join } from 'node:path';

import { chromium } from 'playwright-core';

const WIDTHS = [1440, 900];
const HEIGHT = 900;
const TYPES = { '.html': 'text/html', '.js': 'text/javascript', '.css': 'text/css', '.json': 'application/json' };
const FLAGS = [
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
];

const [prometheus, out, ...files] = process.argv.slice(2);
const minutes = process.env.MINUTES ?? '15';
const theme = process.env.THEME ?? 'dark';

/** Serve the bundle, the dashboards below /dashboards/ and Prometheus below /api/. */
async function serve(request, response) {
  const { pathname } = new URL(request.url, 'http://localhost');
  if (pathname.startsWith('/api/')) {
    const parts = [];
    for await (const part of request) parts.push(part);
    const answer = await fetch(prometheus.replace(/\/$/, '') + request.url, {
      method: 'POST',
      headers: { 'content-type': 'application/x-www-form-urlencoded' },
      body: Buffer.concat(parts),
    });
    response.writeHead(answer.status, { 'content-type': 'application/json' });
    response.end(Buffer.from(await answer.arrayBuffer()));
    return;
  }
  const dashboard = files.find((file) => pathname === `/dashboards/${basename(file)}`);
  const file = dashboard ?? join('dist', pathname === '/' ? 'index.html' : decodeURIComponent(pathname));
  try {
    const content = await readFile(file);
    response.writeHead(200, { 'content-type': TYPES[extname(file)] ?? 'application/octet-stream' });
    response.end(content);
  } catch {
    response.writeHead(404).end();
  }
}

const server = createServer((request, response) => {
  serve(request, response).catch((error) => response.writeHead(502).end(String(error)));
});
await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
const base = `http://127.0.0.1:${server.address().port}`;

const profile = await mkdtemp(join(tmpdir(), 'chromium-'));
const browser = await chromium.launchPersistentContext(profile, {
  executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
  args: FLAGS,
  viewport: { width: WIDTHS[0], height: HEIGHT },
});
let failed = false;
try {
  for (const file of files) {
    for (const width of WIDTHS) {
      const page = await browser.newPage();
      page.on('pageerror', (error) => console.error(`${basename(file)}: ${error.message}`));
      await page.setViewportSize({ width, height: HEIGHT });
      const query = new URLSearchParams({
        dashboard: `${base}/dashboards/${basename(file)}`,
        prometheus: base,
        minutes,
        theme,
        ...(process.env.TO ? { to: process.env.TO } : {}),
      });
      await page.goto(`${base}/?${query}`);
      await page.waitForFunction(() => document.body.dataset.ready || document.body.dataset.error, null, {
        timeout: 60_000,
      });
      const report = await page.evaluate(() => ({
        error: document.body.dataset.error,
        failed: [...document.querySelectorAll('[data-failed]')].map((e) => `${e.dataset.failed}: ${e.textContent}`),
        empty: [...document.querySelectorAll('[data-empty]')].map((e) => e.dataset.empty),
      }));
      const height = await page.evaluate(() => document.documentElement.scrollHeight);
      await page.setViewportSize({ width, height: Math.max(HEIGHT, height) });
      await page.waitForTimeout(300);
      const target = join(out, `${basename(file, '.json')}-${width}.png`);
      await page.screenshot({ path: target, fullPage: true });
      const problems = [...(report.error ? [report.error] : []), ...report.failed];
      failed ||= problems.length > 0;
      console.log(target + (report.empty.length ? `  no data: ${report.empty.join('; ')}` : ''));
      for (const problem of problems) console.error(`  failed: ${problem}`);
      await page.close();
    }
  }
} finally {
  await browser.close();
  server.close();
  await rm(profile, { recursive: true, force: true });
}
process.exitCode = failed ? 1 : 0;
