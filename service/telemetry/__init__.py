"""Metrics, logs, traces and the memory report."""
