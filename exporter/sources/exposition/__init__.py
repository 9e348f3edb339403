"""Prometheus text expositions: parsing, incremental reading and sums by model."""
