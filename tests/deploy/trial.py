"""Test of the image, docker-compose.yml and everything in deploy/ on a container engine: `make deploy-test`.

DOCKER_HOST names the engine. BASE_IMAGE and PROMETHEUS_IMAGE replace images that it cannot pull. Grafana does not run:
the queries of its dashboards are evaluated, panel by panel, against the Prometheus of the test.
"""

import asyncio
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from deploy.traffic import send
from dragoman.client import ClientError
from tests.deploy.composition import faults
from tests.deploy.live import (
    CheckError,
    calls_answered,
    latencies_agree,
    memory_agrees,
    scrape,
    unknown_names_add_no_series,
)
from tests.deploy.prometheus_api import Prometheus, QueryError, Rule
from tests.deploy.queries import Finding, LiveQuery, conditions, panels, run_query
from tests.deploy.stack import COMPOSE, ROOT, CommandError, Stack, run, stack

HADOLINT = Path(sys.executable).with_name("hadolint")
DASHBOARDS = sorted((ROOT / "deploy" / "grafana" / "dashboards").glob("*.json"))

MAX_ADDED_BYTES = 300e6
"""Maximum size of the image beyond its base."""
RATE = 8.0
"""Calls per second."""
TRAFFIC_SECONDS = 60.0
SETTLE_SECONDS = 60.0
"""Time limit, beyond that of the traffic, until every panel and rule has a result."""

ALERT = "DragomanTargetsMissing"
FIRING_SECONDS = 180.0
STOP_SECONDS = 10.0

FORBIDDEN = """\
import importlib.util, os, shutil, sys
wrong = [name for name in ("torch", "onnx", "sympy", "grpc_tools") if importlib.util.find_spec(name)]
wrong += [name for name in ("cc", "gcc", "g++", "make") if shutil.which(name)]
wrong += [path for path in ("/root/.cache", "/source") if os.path.exists(path)]
wrong += ["root"] if os.getuid() == 0 else []
sys.exit(f"the image holds {wrong}" if wrong else 0)
"""


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Print the start of `name` and its duration. Turns expected errors into a ClickException."""
    click.echo(f"--- {name}")
    begun = time.monotonic()
    try:
        yield
    except (ClientError, CommandError, OSError, QueryError, ValueError, CheckError) as error:
        raise click.ClickException(f"{name}: {error}") from error
    click.echo(f"--- {name}: passed in {time.monotonic() - begun:.0f} s")


@dataclass(frozen=True)
class Images:
    """Image names, from docker-compose.yml with the environment's variables."""

    server: str
    base: str
    prometheus: str


def check_composition() -> Images:
    """Check docker-compose.yml with all profiles; returns its images. Raises CommandError, CheckError."""
    config = json.loads(run([str(COMPOSE), "--profile", "*", "config", "--format", "json"]))
    if found := list(faults(config)):
        raise CheckError("\n".join(found))
    server, prometheus = config["services"]["server"], config["services"]["prometheus"]
    return Images(server["image"], server["build"]["args"]["BASE_IMAGE"], prometheus["image"])


def check_files(images: Images) -> None:
    """Lint the Dockerfile, and Prometheus's files with every alert's tests. Raises CommandError."""
    run([str(HADOLINT), "Dockerfile"])
    promtool(images, "check", "config", "/deploy/prometheus/prometheus.yml")
    promtool(images, "check", "rules", "/deploy/prometheus/rules/dragoman.yml")
    click.echo(promtool(images, "test", "rules", "/deploy/prometheus/tests/dragoman.yml").strip())


def promtool(images: Images, *arguments: str, stdin: bytes | None = None) -> str:
    """Output of promtool, run in Prometheus's image. Raises CommandError."""
    files = f"{ROOT}/deploy:/deploy:ro"
    options = ["--rm", "--interactive", "--network", "none", "--volume", files, "--entrypoint", "/bin/promtool"]
    return run(["docker", "run", *options, images.prometheus, *arguments], stdin=stdin)


def check_image(images: Images) -> None:
    """Check the image's size, contents and model, without a network on a read-only root. Raises CheckError."""
    base, size = (
        int(run(["docker", "image", "inspect", "--format", "{{.Size}}", name])) for name in (images.base, images.server)
    )
    click.echo(f"{images.server}: {size / 1e6:.0f} MB, {(size - base) / 1e6:.0f} MB above its base")
    if size - base > MAX_ADDED_BYTES:
        raise CheckError(f"the image may be {MAX_ADDED_BYTES / 1e6:.0f} MB above its base")
    isolated = ["docker", "run", "--rm", "--read-only", "--network", "none", "--cap-drop", "ALL"]
    run([*isolated, "--entrypoint", "python", images.server, "-c", FORBIDDEN])
    click.echo(run([*isolated, images.server, "verify", "/bundle"]).strip().splitlines()[-1])


def evaluate(stack: Stack, prometheus: Prometheus) -> None:
    """Evaluate all panels and rules under mixed traffic. Raises CheckError."""
    with traffic(stack.server) as calls:
        end = time.monotonic() + TRAFFIC_SECONDS + SETTLE_SECONDS
        time.sleep(TRAFFIC_SECONDS / 2)
        while True:
            queries = [*panels(DASHBOARDS, prometheus), *conditions(prometheus.rules())]
            found = [finding for query in queries if (finding := _problem(query, prometheus))]
            if not found or time.monotonic() > end:
                break
            time.sleep(2)
    rules = prometheus.rules()
    errors = [rule for rule in rules if rule.error]
    _report(queries, found, rules)
    if found or errors:
        raise CheckError("\n".join([*map(str, found), *map(str, errors)]))
    for (kind, as_expected), count in sorted(calls.items()):
        click.echo(f"{count} calls of kind {kind} ended {'as expected' if as_expected else 'unexpectedly'}")
    if missing := {"translate", "embed", "bad", "cancelled", "late"} - {kind for kind, well in calls if well}:
        raise CheckError(f"no call of kind {', '.join(sorted(missing))} ended as expected")


@contextmanager
def traffic(address: str) -> Iterator[Counter[tuple[str, bool]]]:
    """Send mixed calls from a thread; the counts by kind and success are complete on exit."""
    calls: Counter[tuple[str, bool]] = Counter()
    thread = threading.Thread(target=lambda: calls.update(asyncio.run(send(address, RATE, TRAFFIC_SECONDS))))
    thread.start()
    try:
        yield calls
    finally:
        thread.join()


def alert_fires_and_ends(stack: Stack, prometheus: Prometheus) -> None:
    """The alert fires after the server is killed, and ends after its restart. Raises CheckError."""
    if ALERT in prometheus.firing():
        raise CheckError(f"{ALERT} fires while the server runs")
    stack.compose("kill", "server")
    took = wait_until(lambda: ALERT in prometheus.firing(), FIRING_SECONDS, f"{ALERT} fires")
    click.echo(f"{ALERT} fired {took:.0f} s after the server was killed")
    stack.up("server")
    took = wait_until(lambda: ALERT not in prometheus.firing(), FIRING_SECONDS, f"{ALERT} ends")
    click.echo(f"{ALERT} ended {took:.0f} s after the server was restarted")


def stops_in_order(stack: Stack) -> None:
    """On SIGTERM the server exits with status 0 within STOP_SECONDS. Raises CheckError."""
    begun = time.monotonic()
    stack.compose("stop", "server")
    took, status = time.monotonic() - begun, stack.inspect("server")["State"]["ExitCode"]
    click.echo(f"the server stopped with status {status} in {took:.1f} s")
    if status or took > STOP_SECONDS:
        raise CheckError(stack.compose("logs", "server"))


def wait_until(condition: Callable[[], bool], seconds: float, description: str) -> float:
    """Wait for `condition`; returns the seconds it took. Raises CheckError."""
    begun = time.monotonic()
    while not condition():
        if time.monotonic() - begun > seconds:
            raise CheckError(f"not within {seconds:g} s: {description}")
        time.sleep(1)
    return time.monotonic() - begun


def _problem(query: LiveQuery, prometheus: Prometheus) -> Finding | None:
    """The problem with the query's result; an empty one is no problem if the query needs a GPU."""
    finding = run_query(query, prometheus)
    return None if finding and query.needs_device and finding.problem == "empty" else finding


def _report(queries: Sequence[LiveQuery], found: Sequence[Finding], rules: Sequence[Rule]) -> None:
    panels_asked = {query.origin.rpartition(" (")[0] for query in queries if not query.of_rule}
    empty = sum(finding.problem == "empty" for finding in found)
    errors = len(found) - empty + sum(bool(rule.error) for rule in rules)
    click.echo(
        f"{len(panels_asked)} panels and {len(rules)} rules, {sum(rule.alerts for rule in rules)} of them alerts, in "
        f"{len(queries)} queries: {empty} empty, {errors} errors; "
        f"may be empty without a GPU: {sum(query.needs_device for query in queries)}"
    )


def run_stages() -> None:
    """Run all stages in order. Raises ClickException at the first failure."""
    with stage("engine"):
        click.echo(run(["docker", "version", "--format", "Docker {{.Server.Version}}"]).strip())
    with stage("files"):
        images = check_composition()
        check_files(images)
    with stage("image"):
        run(["make", "image"], shown=True)
        check_image(images)
    with stack() as services:
        prometheus = Prometheus(services.prometheus)
        with stage("up"):
            services.up("server", "prometheus")
        with stage("latency"):
            click.echo(latencies_agree(services.server, prometheus))
        with stage("calls"):
            click.echo(calls_answered(services.server))
        with stage("panels and rules"):
            evaluate(services, prometheus)
        with stage("metrics"):
            click.echo(unknown_names_add_no_series(services.server, services.metrics))
            click.echo(memory_agrees(services))
            promtool(images, "check", "metrics", stdin=scrape(services.metrics).text.encode())
        with stage("alert"):
            alert_fires_and_ends(services, prometheus)
        with stage("stop"):
            stops_in_order(services)


@click.command()
def main() -> None:
    """Test the image, docker-compose.yml, the dashboards and the rules on a container engine."""
    begun = time.monotonic()
    run_stages()
    click.echo(f"deploy-test: passed in {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
