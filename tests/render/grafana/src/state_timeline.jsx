// States over time, one row per series: Grafana publishes no component for it.
import { formattedValueToString } from '@grafana/data';

import { numbers } from './fields.js';

export function StateTimeline({ frames, width, height, theme }) {
  const rows = frames.map((frame) => ({ time: frame.fields[0].values, field: numbers(frame)[0] }));
  const each = Math.min(34, (height - 20) / rows.length);
  const left = Math.min(220, width / 3);
  const wide = width - left;
  const start = rows[0].time[0];
  const end = rows[0].time.at(-1);
  return (
    <svg width={width} height={height} fontFamily={theme.typography.fontFamily} fontSize="12">
      {rows.map(({ time, field }, row) => {
        const spans = [];
        field.values.forEach((value, index) => {
          if (value === null || value === undefined) return;
          const last = spans.at(-1);
          if (last && last.value === value && last.next === index) last.next = index + 1;
          else spans.push({ value, first: index, next: index + 1 });
        });
        const x = (index) => left + (wide * (time[Math.min(index, time.length - 1)] - start)) / (end - start);
        return (
          <g key={row}>
            <text x={left - 8} y={row * each + each / 2 + 4} textAnchor="end" fill={theme.colors.text.primary}>
              {field.config.displayNameFromDS}
            </text>
            {spans.map(({ value, first, next }) => {
              const shown = field.display(value);
              const size = Math.max(1, x(next) - x(first));
              return (
                <g key={first}>
                  <rect x={x(first)} y={row * each + 2} width={size} height={each - 4} fill={shown.color} />
                  {size > 60 && (
                    <text x={x(first) + 6} y={row * each + each / 2 + 4} fill="#fff">
                      {formattedValueToString(shown)}
                    </text>
                  )}
                </g>
              );
            })}
          </g>
        );
      })}
    </svg>
  );
}
