"""Throughput and latency beside other engines."""
