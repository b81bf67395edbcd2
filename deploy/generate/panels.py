"""Panels in the style of Dragoman's dashboards, and the dashboards' frame, made with Grafana's SDK."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeVar

from grafana_foundation_sdk.builders import common, heatmap, prometheus, stat, timeseries
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.common import (
    AxisPlacement,
    BigValueColorMode,
    BigValueGraphMode,
    BigValueTextMode,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from deploy.generate.promql_names import names_in
from deploy.generate.query import Query, buckets

SOURCE = models.DataSourceRef("prometheus", "dragoman-prometheus")
"""The data source, under its uid in deploy/grafana/provisioning."""

TAG = "dragoman"
"""The link bar of each dashboard lists the dashboards with this tag."""

WIDTH, HEIGHT = 8, 8
"""Default size of a panel, in cells of Grafana's grid, which is 24 wide."""
SMALL = 4
"""Default width and height of a single number."""

Color = Literal["green", "orange", "red"]
PanelBuilder = Builder[models.Panel]
P = TypeVar("P", timeseries.Panel, stat.Panel, heatmap.Panel)


def time_series(
    title: str,
    description: str,
    unit: str,
    *queries: Query,
    width: int = WIDTH,
    stacked: bool = False,
    minimum: float | None = 0,
    maximum: float | None = None,
) -> timeseries.Panel:
    """Lines over time; the scale follows the values where `minimum` or `maximum` is None."""
    panel = _framed(timeseries.Panel(), title, description, queries, width, HEIGHT).unit(unit)
    if minimum is not None:
        panel.min(minimum)
    if maximum is not None:
        panel.max(maximum)
    for target in _targets(queries):
        panel.with_target(target.range())
    legend = common.VizLegendOptions().display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM)
    stacking = common.StackingConfig().mode(StackingMode.NORMAL if stacked else StackingMode.NONE).group("A")
    return (
        panel.fill_opacity(30 if stacked else 10)
        .line_width(1)
        .show_points(VisibilityMode.NEVER)
        .stacking(stacking)
        .legend(legend.show_legend(True))
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
    )


def number(
    title: str, description: str, unit: str, expression: str, *thresholds: tuple[float, Color], width: int = SMALL
) -> stat.Panel:
    """The current value of `expression`, green below the first of `thresholds`."""
    panel = _stat(title, description, unit, Query(expression), width)
    if thresholds:
        steps = [models.Threshold(None, "green"), *(models.Threshold(value, color) for value, color in thresholds)]
        panel.thresholds(builders.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps))
    return panel.color_mode(BigValueColorMode.BACKGROUND if thresholds else BigValueColorMode.VALUE)


def series_names(title: str, description: str, query: Query, width: int) -> stat.Panel:
    """The legends of the current series of `query`, without their values."""
    panel = _stat(title, description, "short", query, width)
    return panel.text_mode(BigValueTextMode.NAME).color_mode(BigValueColorMode.VALUE)


def bucket_heatmap(title: str, description: str, unit: str, histogram: str, matchers: str) -> heatmap.Panel:
    """The distribution of `histogram` over time; `unit` is that of the observations."""
    query = buckets(histogram, matchers)
    panel = _framed(heatmap.Panel(), title, description, (query,), WIDTH, HEIGHT)
    for target in _targets((query,)):
        panel.with_target(target.range().format(PromQueryFormat.HEATMAP))
    color = heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Spectral").steps(64)
    return (
        # Each bucket of the histogram is a row already.
        panel.calculate(False)
        .y_axis(heatmap.YAxisConfig().unit(unit).axis_placement(AxisPlacement.LEFT))
        .color(color.exponent(0.5).fill("dark-orange"))
        .cell_gap(1)
        .show_legend()
        .mode(TooltipDisplayMode.SINGLE)
        .hide_y_histogram()
    )


def dashboard(uid: str, title: str, description: str, rows: Mapping[str, Sequence[PanelBuilder]]) -> models.Dashboard:
    """A dashboard; `rows` maps a heading to its panels, whose widths add up to full lines of the grid."""
    builder = (
        builders.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags([TAG])
        .readonly()
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .refresh("10s")
        .time("now-30m", "now")
        .link(_links())
        .with_variable(_variable("model", "Model", "label_values(dragoman_model_info, model)"))
        .with_variable(_variable("instance", "Server", 'label_values(dragoman_model_info{model=~"$model"}, instance)'))
    )
    for heading, panels in rows.items():
        builder.with_row(builders.Row(heading))
        for panel in panels:
            builder.with_panel(panel)
    page = builder.build()
    for place, built in enumerate(page.panels or (), start=1):
        built.id_val = place
    return page


def _framed(panel: P, title: str, description: str, queries: Sequence[Query], width: int, height: int) -> P:
    """Set the properties that all kinds of panel share; the description ends with the metrics' names."""
    names = dict.fromkeys(name for query in queries for name in names_in(query.promql))
    described = f"{description} From {', '.join(f'`{name}`' for name in names)}."
    return panel.title(title).description(described).datasource(SOURCE).span(width).height(height).overrides([])


def _stat(title: str, description: str, unit: str, query: Query, width: int) -> stat.Panel:
    panel = _framed(stat.Panel(), title, description, (query,), width, SMALL).unit(unit).min(0)
    for target in _targets((query,)):
        panel.with_target(target.instant())
    reduced = common.ReduceDataOptions().calcs(["lastNotNull"]).fields("").values(False)
    return panel.reduce_options(reduced).text_mode(BigValueTextMode.AUTO).graph_mode(BigValueGraphMode.NONE)


def _targets(queries: Sequence[Query]) -> Iterable[prometheus.Dataquery]:
    for index, query in enumerate(queries):
        yield (
            prometheus.Dataquery()
            .ref_id(chr(ord("A") + index))
            .datasource(SOURCE)
            .expr(query.promql)
            .legend_format(query.legend or "__auto")
            .format(PromQueryFormat.TIME_SERIES)
        )


def _variable(name: str, label: str, query: str) -> builders.QueryVariable:
    return (
        builders.QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query({"query": query, "refId": name})
        # Servers come and go: reload the values with every change of the time range.
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .current(models.VariableOption(text=["All"], value=["$__all"]))
    )


def _links() -> builders.DashboardLink:
    return (
        builders.DashboardLink("Dragoman")
        .type(models.DashboardLinkType.DASHBOARDS)
        .tags([TAG])
        .icon("external link")
        .include_vars(True)
        .keep_time(True)
    )
