"""Deployment of Dragoman: Prometheus and Grafana files, their generator, and test traffic."""
