// Draw a dashboard from live data: /?dashboard=URL&prometheus=URL&minutes=N&theme=dark
import { createTheme, dateTime, getDefaultTimeRange, ThemeContext } from '@grafana/data';
import { GlobalStyles, PanelChrome } from '@grafana/ui';
import { Component, useEffect, useState } from 'react';
import { createRoot } from 'react-dom/client';

import { configured } from './fields.js';
import { PanelBody } from './panels.jsx';
import { frames } from './prometheus.js';
import { replace, resolve } from './variables.js';
import './style.css';

const ROW_HEIGHT = 30;
const MARGIN = 8;
const SCRAPE_SECONDS = 15; // what Grafana assumes of a datasource

const parameters = new URLSearchParams(location.search);
const prometheus = parameters.get('prometheus');
const theme = createTheme({ colors: { mode: parameters.get('theme') ?? 'dark' } });
const to = Number(parameters.get('to')) || Math.floor(Date.now() / 1000);
const from = to - 60 * Number(parameters.get('minutes') ?? 15);
const range = { from, to, step: Math.max(1, Math.ceil((to - from) / 240)) };
const grafanaRange = { ...getDefaultTimeRange(), from: dateTime(from * 1000), to: dateTime(to * 1000) };

/** All panels in reading order; those of a collapsed row are drawn below it, as when opened. */
function visible(dashboard) {
  return dashboard.panels.flatMap((panel) => [panel, ...(panel.panels ?? [])]);
}

async function data(panel, values) {
  if (panel.type === 'row' || panel.type === 'text') return [];
  const results = await Promise.all(
    panel.targets.map((target) => frames(prometheus, target, replace(target.expr, values), range)),
  );
  return configured(panel, results.flat(), theme, values);
}

class Failure extends Component {
  state = {};

  static getDerivedStateFromError(error) {
    return { error };
  }

  render() {
    const { error } = this.state;
    return error ? <pre data-failed={this.props.title}>{String(error.stack)}</pre> : this.props.children;
  }
}

function Panel({ panel, frames: shown, width, values }) {
  const { x, y, w, h } = panel.gridPos;
  const column = (width + MARGIN) / 24;
  const box = {
    left: x * column,
    top: y * (ROW_HEIGHT + MARGIN),
    width: w * column - MARGIN,
    height: h * (ROW_HEIGHT + MARGIN) - MARGIN,
  };
  const title = replace(panel.title, values);
  if (panel.type === 'row') {
    return (
      <h2 className="row-title" style={{ ...box, position: 'absolute' }}>
        {title}
      </h2>
    );
  }
  return (
    <section style={{ ...box, position: 'absolute' }} data-title={title}>
      <PanelChrome title={title} description={panel.description} width={box.width} height={box.height}>
        {(innerWidth, innerHeight) => (
          <Failure title={title}>
            <PanelBody
              panel={panel}
              frames={shown}
              width={innerWidth}
              height={innerHeight}
              range={grafanaRange}
              theme={theme}
            />
          </Failure>
        )}
      </PanelChrome>
    </section>
  );
}

function Dashboard() {
  const [state, setState] = useState(null);
  useEffect(() => {
    (async () => {
      const dashboard = await (await fetch(parameters.get('dashboard'))).json();
      const values = await resolve(dashboard, prometheus, range, SCRAPE_SECONDS);
      const panels = visible(dashboard);
      const drawn = await Promise.all(
        panels.map(async (panel) => {
          try {
            return { panel, frames: await data(panel, values) };
          } catch (error) {
            throw new Error(`${dashboard.title}: ${panel.title}: ${error.message}`);
          }
        }),
      );
      setState({ dashboard, values, drawn });
    })().catch((error) => {
      document.body.dataset.error = error.message;
    });
  }, []);
  useEffect(() => {
    if (state) setTimeout(() => (document.body.dataset.ready = 'yes'), 500);
  }, [state]);
  if (!state) return null;
  const width = window.innerWidth - 32;
  const bottom = Math.max(...state.drawn.map(({ panel }) => panel.gridPos.y + panel.gridPos.h));
  const named = state.dashboard.templating.list.filter(({ type }) => type !== 'datasource');
  return (
    <main>
      <header>
        <h1>{state.dashboard.title}</h1>
        {named.map(({ name, label }) => (
          <span className="variable" key={name}>
            <b>{label ?? name}</b> {/^\(.*\)$|^\.[*+]$/.test(state.values[name]) ? 'All' : state.values[name]}
          </span>
        ))}
        {(state.dashboard.links ?? []).map(({ title }) => (
          <span className="link" key={title}>
            {title} ↗
          </span>
        ))}
      </header>
      <div style={{ position: 'relative', height: bottom * (ROW_HEIGHT + MARGIN) }}>
        {state.drawn.map(({ panel, frames: shown }) => (
          <Panel key={panel.id} panel={panel} frames={shown} width={width} values={state.values} />
        ))}
      </div>
    </main>
  );
}

document.body.style.background = theme.colors.background.canvas;
createRoot(document.getElementById('root')).render(
  <ThemeContext.Provider value={theme}>
    <GlobalStyles />
    <Dashboard />
  </ThemeContext.Provider>,
);
