"""Throughput and latency, compared with other engines."""
