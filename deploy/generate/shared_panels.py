"""Queries and panels of the usual shapes."""

from deploy.generate.panels import Color, Panel, Query
from dragoman.v1.names import SERVICE

CALLS = f'grpc_service="{SERVICE}",$SERVER'
"""Matches the series of our own methods, on the chosen servers."""

QUANTILES = (0.5, 0.95, 0.99)

SMALL = 4
"""Width of a single number, and its height."""


def quantiles(name: str, matchers: str) -> tuple[Query, ...]:
    """The usual quantiles of the histogram `name`."""
    return tuple(
        Query(
            f"histogram_quantile({quantile}, sum by (le) (rate({name}_bucket{{{matchers}}}[$__rate_interval])))",
            f"p{quantile * 100:g}",
        )
        for quantile in QUANTILES
    )


def rate(name: str, matchers: str, by: str, legend: str = "") -> Query:
    """How fast the counter `name` grows, by the label `by`; with `legend`, by several."""
    return Query(f"sum by ({by}) (rate({name}{{{matchers}}}[$__rate_interval]))", legend or f"{{{{{by}}}}}")


def heatmap(title: str, description: str, unit: str, name: str, matchers: str) -> Panel:
    """How many observations of the histogram `name` fell into each bucket, over time."""
    query = Query(f"sum by (le) (increase({name}_bucket{{{matchers}}}[$__rate_interval]))", "{{le}}")
    return Panel(title, description, unit, (query,), kind="heatmap")


def number(
    title: str, description: str, unit: str, query: str, *steps: tuple[float, Color], width: int = SMALL
) -> Panel:
    """A single number, green below the first of `steps`."""
    return Panel(title, description, unit, (Query(query),), "stat", width, SMALL, steps=steps)
