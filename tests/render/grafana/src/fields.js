// Field configuration of a panel, applied to its data frames as Grafana does.
import {
  applyFieldOverrides,
  cacheFieldDisplayNames,
  FieldType,
  Registry,
  standardFieldConfigEditorRegistry,
  standardTransformers,
  standardTransformersRegistry,
  transformDataFrame,
} from '@grafana/data';
import { firstValueFrom, isObservable } from 'rxjs';

const STANDARD = ['unit', 'min', 'max', 'decimals', 'displayName', 'noValue', 'thresholds', 'mappings', 'links', 'color'];

function property(id) {
  const path = id.replace(/^custom\./, '');
  return {
    id,
    path,
    name: id,
    isCustom: id !== path,
    process: (value) => value,
    shouldApply: () => true,
    editor: () => null,
    override: () => null,
  };
}

standardFieldConfigEditorRegistry.setInit(() => STANDARD.map(property));
standardTransformersRegistry.setInit(() =>
  [...new Set(Object.values(standardTransformers))].map((transformation) => ({
    id: transformation.id,
    name: transformation.name,
    transformation: () => Promise.resolve(transformation),
  })),
);

function registry(panel) {
  const { defaults, overrides } = panel.fieldConfig;
  const custom = [
    ...Object.keys(defaults.custom ?? {}).map((key) => `custom.${key}`),
    ...overrides.flatMap(({ properties }) => properties.map(({ id }) => id)),
  ];
  return new Registry(() => [...new Set([...STANDARD, ...custom])].map(property));
}

/** Apply transformations, defaults and overrides of a panel to its frames. */
export async function configured(panel, frames, theme, values) {
  const transformed = transformDataFrame(panel.transformations ?? [], frames);
  const series = isObservable(transformed) ? await firstValueFrom(transformed) : transformed;
  const replaceVariables = (text) =>
    text.replaceAll(/\$(?:{(\w+)[^}]*}|(\w+))/g, (whole, a, b) => values[a ?? b] ?? whole);
  const applied = applyFieldOverrides({
    data: series,
    fieldConfig: panel.fieldConfig,
    fieldConfigRegistry: registry(panel),
    replaceVariables,
    theme,
    timeZone: 'utc',
  });
  cacheFieldDisplayNames(applied);
  return applied;
}

export const numbers = (frame) => frame.fields.filter((field) => field.type === FieldType.number);
