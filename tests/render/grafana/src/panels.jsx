// Draw one panel with Grafana's own components where they are published.
import { getFieldDisplayValues } from '@grafana/data';
import { BarGauge, BigValue, BigValueColorMode, BigValueGraphMode, BigValueTextMode, TimeSeries } from '@grafana/ui';
import { TableNG } from '@grafana/ui/unstable';

import { numbers } from './fields.js';
import { Heatmap } from './heatmap.jsx';
import { StateTimeline } from './state_timeline.jsx';

function Empty({ panel, width, height }) {
  const text = panel.fieldConfig.defaults.noValue || 'No data';
  return (
    <div className="empty" style={{ width, height }} data-empty={panel.title}>
      {text}
    </div>
  );
}

const PLACEMENT = { list: 'list', table: 'table', hidden: 'hidden' };

function TimeSeriesPanel({ panel, frames, width, height, range, theme }) {
  const legend = panel.options.legend ?? {};
  return (
    <TimeSeries
      frames={frames}
      width={width}
      height={height}
      timeRange={range}
      timeZone="utc"
      theme={theme}
      legend={{
        showLegend: legend.showLegend ?? true,
        displayMode: PLACEMENT[legend.displayMode] ?? 'list',
        placement: legend.placement ?? 'bottom',
        calcs: legend.calcs ?? [],
      }}
      options={panel.options}
    />
  );
}

function displays(panel, frames, theme) {
  return getFieldDisplayValues({
    fieldConfig: panel.fieldConfig,
    reduceOptions: { calcs: ['lastNotNull'], ...panel.options.reduceOptions },
    replaceVariables: (text) => text,
    theme,
    data: frames,
    sparkline: panel.options.graphMode === 'area',
    timeZone: 'utc',
  });
}

function tiles(count, width, height, orientation) {
  const gap = 6;
  const columns =
    orientation === 'vertical'
      ? count
      : orientation === 'horizontal'
        ? 1
        : Math.max(1, Math.min(count, Math.round(Math.sqrt((count * width) / height / 2.2)) || 1));
  const rows = Math.ceil(count / columns);
  return {
    columns,
    width: (width - gap * (columns - 1)) / columns,
    height: (height - gap * (rows - 1)) / rows,
    gap,
  };
}

function StatPanel({ panel, frames, width, height, theme }) {
  const values = displays(panel, frames, theme);
  const layout = tiles(values.length, width, height, panel.options.orientation);
  return (
    <div className="tiles" style={{ gap: layout.gap, gridTemplateColumns: `repeat(${layout.columns}, 1fr)` }}>
      {values.map((value, index) => (
        <BigValue
          key={index}
          value={value.display}
          count={values.length}
          sparkline={value.sparkline}
          width={layout.width}
          height={layout.height}
          theme={theme}
          colorMode={panel.options.colorMode ?? BigValueColorMode.Value}
          graphMode={panel.options.graphMode ?? BigValueGraphMode.None}
          textMode={panel.options.textMode ?? BigValueTextMode.Auto}
          justifyMode={panel.options.justifyMode ?? 'auto'}
          text={panel.options.text}
        />
      ))}
    </div>
  );
}

function BarGaugePanel({ panel, frames, width, height, theme }) {
  const values = displays(panel, frames, theme);
  const layout = tiles(values.length, width, height, panel.options.orientation ?? 'horizontal');
  return (
    <div className="tiles" style={{ gap: layout.gap, gridTemplateColumns: `repeat(${layout.columns}, 1fr)` }}>
      {values.map((value, index) => (
        <BarGauge
          key={index}
          value={value.display}
          field={value.field}
          display={value.view?.getFieldDisplayProcessor(value.colIndex)}
          width={layout.width}
          height={layout.height}
          theme={theme}
          orientation={panel.options.orientation ?? 'horizontal'}
          displayMode={panel.options.displayMode ?? 'basic'}
          itemSpacing={10}
          lcdCellWidth={12}
        />
      ))}
    </div>
  );
}

function TablePanel({ panel, frames, width, height }) {
  return (
    <TableNG
      data={frames[0]}
      width={width}
      height={height}
      noHeader={panel.options.showHeader === false}
      cellHeight={panel.options.cellHeight ?? 'sm'}
      initialSortBy={panel.options.sortBy}
      frozenColumns={0}
      structureRev={1}
      onCellFilterAdded={undefined}
      getActions={() => []}
    />
  );
}

function TextPanel({ panel }) {
  return <div className="text">{panel.options.content}</div>;
}

const PANELS = {
  bargauge: BarGaugePanel,
  heatmap: Heatmap,
  stat: StatPanel,
  'state-timeline': StateTimeline,
  table: TablePanel,
  text: TextPanel,
  timeseries: TimeSeriesPanel,
};

/** Draw a panel into width x height, or what it shows without data. */
export function PanelBody(properties) {
  const { panel, frames } = properties;
  const Body = PANELS[panel.type];
  if (!Body) throw new Error(`unknown panel type ${panel.type}`);
  const shows = (frame) => frame.length && (panel.type === 'table' || numbers(frame).length);
  if (panel.type !== 'text' && !frames.some(shows)) {
    return <Empty {...properties} />;
  }
  return <Body {...properties} />;
}

