"""Keep the documentation current: generate its tables and run the commands that it shows."""
