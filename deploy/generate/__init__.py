"""Grafana's dashboards and Prometheus's rules, generated from the code that defines the metrics.

    python -m deploy.generate deploy

    alerts.py               recording rules, and alerts with one case that fires and one that does not
    rules.py                the types of rules, and the files for Prometheus and promtool
    query.py                PromQL queries of the dashboards
    panels.py               panels and the dashboards' frame, made with Grafana's SDK
    *_dashboard.py          one dashboard each; dashboards.py lists them
    promql_names.py         the metrics that a PromQL expression names
    picture.py              the Overview's curves as a picture

A development tool: the wheel does not contain it, and Grafana's SDK comes with the extra `dev`.
"""
