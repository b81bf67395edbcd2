"""What looks at the metrics: Grafana's dashboards and Prometheus's rules, made from the code that defines the metrics.

    python -m deploy.generate deploy

    expressions.py   which metrics a PromQL expression names
    rules.py         recording rules and alerts, and the files of both
    alerts.py        the alerts themselves, each with a case that fires and one that does not
    panels.py        a dashboard as values, and as Grafana's JSON
    usual.py         queries and panels of the usual shapes
    overview.py      the dashboards themselves, with engine.py and memory.py

Nothing that serves imports this.
"""
