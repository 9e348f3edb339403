// Queries of a panel against the HTTP API of Prometheus, as data frames.
import { FieldType, toDataFrame } from '@grafana/data';

async function get(base, path, parameters) {
  const response = await fetch(`${base}/api/v1/${path}`, {
    method: 'POST',
    body: new URLSearchParams(parameters),
  });
  const body = await response.json();
  if (body.status !== 'success') throw new Error(body.error);
  return body.data;
}

/** Return the values of `label_values(selector, label)`, sorted. */
export async function labelValues(base, query, range) {
  const [, selector, label] = /^label_values\((?:(.*),)?\s*(\w+)\s*\)$/s.exec(query);
  const series = await get(base, 'series', {
    'match[]': selector || `{${label}!=""}`,
    start: range.from,
    end: range.to,
  });
  return [...new Set(series.map((labels) => labels[label]).filter(Boolean))].sort();
}

const number = (text) => (text === 'NaN' ? null : Number(text.replace('Inf', 'Infinity')));

function legend(template, labels) {
  if (template) return template.replaceAll(/{{\s*(\w+)\s*}}/g, (_, name) => labels[name] ?? '');
  const pairs = Object.entries(labels).filter(([name]) => name !== '__name__');
  return pairs.length ? `{${pairs.map(([k, v]) => `${k}="${v}"`).join(', ')}}` : 'Value';
}

function seriesFrame(target, { metric, values }) {
  const name = legend(target.legendFormat, metric);
  return toDataFrame({
    refId: target.refId,
    name,
    fields: [
      { name: 'Time', type: FieldType.time, values: values.map(([time]) => time * 1000) },
      {
        name: 'Value',
        type: FieldType.number,
        labels: metric,
        config: { displayNameFromDS: name },
        values: values.map(([, value]) => number(value)),
      },
    ],
  });
}

function tableFrame(target, samples) {
  const labels = [...new Set(samples.flatMap(({ metric }) => Object.keys(metric)))].sort();
  return toDataFrame({
    refId: target.refId,
    fields: [
      { name: 'Time', type: FieldType.time, values: samples.map(({ value }) => value[0] * 1000) },
      ...labels.map((label) => ({
        name: label,
        type: FieldType.string,
        values: samples.map(({ metric }) => metric[label] ?? ''),
      })),
      {
        name: `Value #${target.refId}`,
        type: FieldType.number,
        values: samples.map(({ value }) => number(value[1])),
      },
    ],
  });
}

/** Insert null where a series has no sample for over one step, so that lines break there. */
function filled(series, range) {
  const known = new Map(series.values.map(([time, value]) => [time, value]));
  const values = [];
  for (let time = range.from; time <= range.to; time += range.step) {
    values.push([time, known.get(time) ?? 'NaN']);
  }
  return { ...series, values };
}

/** Run one target; `range` is {from, to, step} in seconds. */
export async function frames(base, target, expr, range) {
  if (target.instant) {
    const { result } = await get(base, 'query', { query: expr, time: range.to });
    if (target.format === 'table') return result.length ? [tableFrame(target, result)] : [];
    return result.map(({ metric, value }) => seriesFrame(target, { metric, values: [value] }));
  }
  const { result } = await get(base, 'query_range', {
    query: expr,
    start: range.from,
    end: range.to,
    step: range.step,
  });
  return result.map((series) => seriesFrame(target, filled(series, range)));
}
