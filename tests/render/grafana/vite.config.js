// Bundle the renderer; Grafana's components expect a global `process.env`.
import { defineConfig } from 'vite';

export default defineConfig({
  base: './',
  define: { 'process.env': '{}', global: 'globalThis' },
  oxc: { jsx: { runtime: 'automatic' } },
  build: { chunkSizeWarningLimit: 20_000, sourcemap: false },
});
