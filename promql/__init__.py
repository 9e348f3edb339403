"""The ground floor: PromQL as data, and the client of the Prometheus HTTP API."""
