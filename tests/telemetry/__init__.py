"""Metrics, traces and error reports: what other systems learn about jobs."""
