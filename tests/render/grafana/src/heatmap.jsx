// A heatmap of a classic histogram by `le`: Grafana publishes no component for it.
import { formattedValueToString, getValueFormat } from '@grafana/data';
import { useEffect, useRef } from 'react';

import { numbers } from './fields.js';

const LEFT = 60;
const BOTTOM = 22;
const ORANGES = ['#fff5eb', '#fdd0a2', '#fdae6b', '#fd8d3c', '#e6550d', '#a63603'];

/** Return the buckets, ascending, each with its boundary and counts, from cumulative ones. */
function buckets(frames) {
  const cumulative = frames
    .map((frame) => {
      const [field] = numbers(frame);
      return { le: Number((field.labels.le ?? frame.name).replace('+Inf', 'Infinity')), values: field.values };
    })
    .sort((a, b) => a.le - b.le);
  return cumulative.map(({ le, values }, index) => ({
    le,
    counts: values.map((value, i) => Math.max(0, value - (index ? cumulative[index - 1].values[i] : 0))),
  }));
}

export function Heatmap({ panel, frames, width, height, range, theme }) {
  const canvas = useRef(null);
  useEffect(() => {
    const all = buckets(frames);
    const used = all.filter(({ counts }) => counts.some((count) => count > 0));
    const first = Math.max(0, all.indexOf(used[0]) - 1);
    const rows = all.slice(first, all.indexOf(used.at(-1)) + 2);
    const times = frames[0].fields[0].values;
    const most = Math.max(...rows.flatMap(({ counts }) => counts.filter(Number.isFinite)));
    const context = canvas.current.getContext('2d');
    const ratio = window.devicePixelRatio;
    canvas.current.width = width * ratio;
    canvas.current.height = height * ratio;
    context.scale(ratio, ratio);
    const cell = { width: (width - LEFT) / times.length, height: (height - BOTTOM) / rows.length };
    const dark = theme.isDark;
    rows.forEach(({ counts }, row) => {
      counts.forEach((count, column) => {
        if (!(count > 0)) return;
        const step = Math.min(ORANGES.length - 1, Math.floor(Math.sqrt(count / most) * ORANGES.length));
        context.fillStyle = ORANGES[dark ? ORANGES.length - 1 - step : step];
        context.fillRect(
          LEFT + column * cell.width,
          height - BOTTOM - (row + 1) * cell.height,
          cell.width + 0.5,
          cell.height - 1,
        );
      });
    });
    context.fillStyle = theme.colors.text.secondary;
    context.font = `12px ${theme.typography.fontFamily}`;
    context.textAlign = 'right';
    const format = getValueFormat(panel.options.yAxis?.unit ?? 's');
    const every = Math.max(1, Math.ceil(18 / cell.height));
    rows.forEach(({ le }, row) => {
      if (row % every) return;
      const text = Number.isFinite(le) ? formattedValueToString(format(le)) : '+Inf';
      context.fillText(text, LEFT - 6, height - BOTTOM - (row + 1) * cell.height + 5);
    });
    context.textAlign = 'center';
    const ticks = Math.max(2, Math.floor(width / 160));
    for (let tick = 0; tick <= ticks; tick += 1) {
      const time = range.from.valueOf() + ((range.to.valueOf() - range.from.valueOf()) * tick) / ticks;
      const label = new Date(time).toISOString().slice(11, 16);
      context.fillText(label, LEFT + ((width - LEFT - 30) * tick) / ticks + 15, height - 5);
    }
  }, [panel, frames, width, height, range, theme]);
  return <canvas ref={canvas} style={{ width, height }} />;
}
