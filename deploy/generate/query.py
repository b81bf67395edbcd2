"""PromQL queries of the dashboards."""

from dataclasses import dataclass

from dragoman.v1.names import SERVICE

MODEL = 'model=~"$model",instance=~"$instance"'
SERVER = 'instance=~"$instance"'

CALLS = f'grpc_service="{SERVICE}",$SERVER'
"""Matches the series of Dragoman's own methods on the selected servers."""

QUANTILES = (0.5, 0.95, 0.99)


@dataclass(frozen=True)
class Query:
    """One expression of a panel.

    `$MODEL` and `$SERVER` in the expression stand for the label matchers of the reader's selection.
    """

    expression: str
    legend: str = ""

    @property
    def promql(self) -> str:
        """The expression on one line; only Grafana's own variables are left in it."""
        return " ".join(self.expression.split()).replace("$MODEL", MODEL).replace("$SERVER", SERVER)


def quantiles(histogram: str, matchers: str) -> tuple[Query, ...]:
    """Median, 95th and 99th percentile of `histogram`."""
    return tuple(
        Query(
            f"histogram_quantile({quantile}, sum by (le) (rate({histogram}_bucket{{{matchers}}}[$__rate_interval])))",
            f"p{quantile * 100:g}",
        )
        for quantile in QUANTILES
    )


def rate(counter: str, matchers: str, by: str, legend: str = "") -> Query:
    """Growth of `counter` per second, by the label `by`; several labels need a `legend`."""
    return Query(f"sum by ({by}) (rate({counter}{{{matchers}}}[$__rate_interval]))", legend or f"{{{{{by}}}}}")


def buckets(histogram: str, matchers: str) -> Query:
    """Number of observations in each bucket of `histogram`."""
    return Query(f"sum by (le) (increase({histogram}_bucket{{{matchers}}}[$__rate_interval]))", "{{le}}")
