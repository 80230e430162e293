"""Metrics, traces and error reports: what other systems are told about jobs."""
