"""Find defects in the queries of dashboards and rule files."""
