"""Read YAML and JSON text into values with line numbers; write JSON and SARIF."""
