// Variables of a dashboard: their values in this Prometheus, and their use in queries.
import { labelValues } from './prometheus.js';

const escaped = (value) => value.replaceAll(/[\\^$.*+?()[\]{}|]/g, '\\\\$&');

/** Return {name: text to insert}: all values as a regular expression, or the first one. */
export async function resolve(dashboard, base, range, seconds) {
  const values = {
    __rate_interval: `${Math.max(seconds * 4, range.step + seconds)}s`,
    __interval: `${Math.max(range.step, seconds)}s`,
    __range: `${range.to - range.from}s`,
    __range_s: `${range.to - range.from}`,
  };
  for (const variable of dashboard.templating.list) {
    if (variable.type === 'query') {
      const query = typeof variable.query === 'string' ? variable.query : variable.query.query;
      const found = await labelValues(base, replace(query, values), range);
      values[variable.name] = variable.includeAll
        ? (variable.allValue ?? (found.length ? `(${found.map(escaped).join('|')})` : '.*'))
        : (found[0] ?? '');
    } else if (variable.type !== 'datasource') {
      const current = variable.current?.value ?? variable.query;
      values[variable.name] = Array.isArray(current) ? current.join('|') : current;
    }
  }
  return values;
}

/** Replace $name, ${name} and ${name:format} in a text. */
export function replace(text, values) {
  return text.replaceAll(/\$(?:{(\w+)(?::\w+)?}|(\w+))/g, (whole, braced, bare) =>
    String(values[braced ?? bare] ?? whole),
  );
}
