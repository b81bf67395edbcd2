"""Everything in deploy/, with the image and docker-compose.yml, tried on a real engine: `make deploy-test`.

The engine is the one that DOCKER_HOST names; BASE_IMAGE and PROMETHEUS_IMAGE stand in for images that it cannot have.
Grafana is left out: its dashboards are evaluated, panel by panel, against that Prometheus.
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
    WrongError,
    calls_answered,
    latencies_agree,
    memory_agrees,
    scrape,
    strangers_make_no_series,
)
from tests.deploy.prometheus_api import Prometheus, QueryError, Rule
from tests.deploy.queries import Finding, Question, ask, conditions, panels
from tests.deploy.stack import COMPOSE, ROOT, CommandError, Stack, run, stack

HADOLINT = Path(sys.executable).with_name("hadolint")
DASHBOARDS = sorted((ROOT / "deploy" / "grafana" / "dashboards").glob("*.json"))

MAX_ADDED_BYTES = 300e6
"""What the image may hold above its base."""
RATE = 8.0
"""Calls a second."""
TRAFFIC_SECONDS = 60.0
PATIENCE_SECONDS = 60.0
"""How long panels and rules may take, with traffic, until each has something to show."""

ALERT = "DragomanTargetsMissing"
FIRING_SECONDS = 180.0
STOP_SECONDS = 10.0

LEFT_OUT = """\
import importlib.util, os, shutil, sys
wrong = [name for name in ("torch", "onnx", "sympy", "grpc_tools") if importlib.util.find_spec(name)]
wrong += [name for name in ("cc", "gcc", "g++", "make") if shutil.which(name)]
wrong += [path for path in ("/root/.cache", "/source") if os.path.exists(path)]
wrong += ["root"] if os.getuid() == 0 else []
sys.exit(f"the image holds {wrong}" if wrong else 0)
"""


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Say when `name` begins, and how long it took. Turns what goes wrong in it into one error."""
    click.echo(f"--- {name}")
    begun = time.monotonic()
    try:
        yield
    except (ClientError, CommandError, OSError, QueryError, ValueError, WrongError) as error:
        raise click.ClickException(f"{name}: {error}") from error
    click.echo(f"--- {name}: passed in {time.monotonic() - begun:.0f} s")


@dataclass(frozen=True)
class Images:
    """Their names, from docker-compose.yml with the environment put in."""

    server: str
    base: str
    prometheus: str


def check_composition() -> Images:
    """docker-compose.yml with all its profiles, and which images it runs. Raises CommandError, WrongError."""
    config = json.loads(run([str(COMPOSE), "--profile", "*", "config", "--format", "json"]))
    if found := list(faults(config)):
        raise WrongError("\n".join(found))
    server, prometheus = config["services"]["server"], config["services"]["prometheus"]
    return Images(server["image"], server["build"]["args"]["BASE_IMAGE"], prometheus["image"])


def check_files(images: Images) -> None:
    """What can be said of the other files before anything runs. Raises CommandError."""
    run([str(HADOLINT), "Dockerfile"])
    promtool(images, "check", "config", "/deploy/prometheus/prometheus.yml")
    promtool(images, "check", "rules", "/deploy/prometheus/rules/dragoman.yml")
    click.echo(promtool(images, "test", "rules", "/deploy/prometheus/tests/dragoman.yml").strip())


def promtool(images: Images, *arguments: str, given: bytes | None = None) -> str:
    """Run the promtool of Prometheus's image. Raises CommandError."""
    files = f"{ROOT}/deploy:/deploy:ro"
    options = ["--rm", "--interactive", "--network", "none", "--volume", files, "--entrypoint", "/bin/promtool"]
    return run(["docker", "run", *options, images.prometheus, *arguments], given=given)


def check_image(images: Images) -> None:
    """Its size, what is not in it, and its model, without a network and on a read-only root. Raises WrongError."""
    base, whole = (
        int(run(["docker", "image", "inspect", "--format", "{{.Size}}", name])) for name in (images.base, images.server)
    )
    click.echo(f"{images.server}: {whole / 1e6:.0f} MB, {(whole - base) / 1e6:.0f} MB above its base")
    if whole - base > MAX_ADDED_BYTES:
        raise WrongError(f"the image may be {MAX_ADDED_BYTES / 1e6:.0f} MB above its base")
    alone = ["docker", "run", "--rm", "--read-only", "--network", "none", "--cap-drop", "ALL"]
    run([*alone, "--entrypoint", "python", images.server, "-c", LEFT_OUT])
    click.echo(run([*alone, images.server, "verify", "/bundle"]).strip().splitlines()[-1])


def evaluate(stack: Stack, prometheus: Prometheus) -> None:
    """All panels and rules, under mixed traffic. Raises WrongError."""
    with traffic(stack.server) as ended:
        end = time.monotonic() + TRAFFIC_SECONDS + PATIENCE_SECONDS
        time.sleep(TRAFFIC_SECONDS / 2)
        while True:
            questions = [*panels(DASHBOARDS, prometheus), *conditions(prometheus.rules())]
            found = [finding for question in questions if (finding := _answered(question, prometheus))]
            if not found or time.monotonic() > end:
                break
            time.sleep(2)
    rules = prometheus.rules()
    errors = [rule for rule in rules if rule.error]
    _report(questions, found, rules)
    if found or errors:
        raise WrongError("\n".join([*map(str, found), *map(str, errors)]))
    for (kind, well), count in sorted(ended.items()):
        click.echo(f"{count} calls of kind {kind} ended {'as they should' if well else 'otherwise'}")
    if missing := {"translate", "embed", "bad", "cancelled", "late"} - {kind for kind, well in ended if well}:
        raise WrongError(f"no call of kind {', '.join(sorted(missing))} ended as it should")


@contextmanager
def traffic(address: str) -> Iterator[Counter[tuple[str, bool]]]:
    """Mixed calls while inside, in a thread of their own; what came of them is known when left."""
    ended: Counter[tuple[str, bool]] = Counter()
    thread = threading.Thread(target=lambda: ended.update(asyncio.run(send(address, RATE, TRAFFIC_SECONDS))))
    thread.start()
    try:
        yield ended
    finally:
        thread.join()


def alert_fires_and_ends(stack: Stack, prometheus: Prometheus) -> None:
    """The server is killed, the alert fires; the server is back, the alert is over. Raises WrongError."""
    if ALERT in prometheus.firing():
        raise WrongError(f"{ALERT} fires while the server is well")
    stack.compose("kill", "server")
    took = wait_until(lambda: ALERT in prometheus.firing(), FIRING_SECONDS, f"{ALERT} fires")
    click.echo(f"{ALERT} fired {took:.0f} s after the server was killed")
    stack.up("server")
    took = wait_until(lambda: ALERT not in prometheus.firing(), FIRING_SECONDS, f"{ALERT} ends")
    click.echo(f"{ALERT} was over {took:.0f} s after the server was back")


def stops_in_order(stack: Stack) -> None:
    """SIGTERM ends the server with status 0, soon. Raises WrongError."""
    begun = time.monotonic()
    stack.compose("stop", "server")
    took, status = time.monotonic() - begun, stack.inspect("server")["State"]["ExitCode"]
    click.echo(f"the server stopped with status {status} in {took:.1f} s")
    if status or took > STOP_SECONDS:
        raise WrongError(stack.compose("logs", "server"))


def wait_until(true: Callable[[], bool], seconds: float, what: str) -> float:
    """How many seconds it took. Raises WrongError."""
    begun = time.monotonic()
    while not true():
        if time.monotonic() - begun > seconds:
            raise WrongError(f"not within {seconds:g} s: {what}")
        time.sleep(1)
    return time.monotonic() - begun


def _answered(question: Question, prometheus: Prometheus) -> Finding | None:
    """What is wrong with it; nothing where it needs a GPU and has no answer."""
    finding = ask(question, prometheus)
    return None if finding and question.needs_device and finding.problem == "empty" else finding


def _report(questions: Sequence[Question], found: Sequence[Finding], rules: Sequence[Rule]) -> None:
    drawn = {question.place.rpartition(" (")[0] for question in questions if not question.of_rule}
    empty = sum(finding.problem == "empty" for finding in found)
    errors = len(found) - empty + sum(bool(rule.error) for rule in rules)
    click.echo(
        f"{len(drawn)} panels and {len(rules)} rules, {sum(rule.alerts for rule in rules)} of them alerts, in "
        f"{len(questions)} queries: {empty} empty, {errors} errors; "
        f"{sum(question.needs_device for question in questions)} query of GPUs alone may be empty"
    )


def rehearse() -> None:
    """All stages, one after the other. Raises ClickException at the first that fails."""
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
            click.echo(strangers_make_no_series(services.server, services.metrics))
            click.echo(memory_agrees(services))
            promtool(images, "check", "metrics", given=scrape(services.metrics).text.encode())
        with stage("alert"):
            alert_fires_and_ends(services, prometheus)
        with stage("stop"):
            stops_in_order(services)


@click.command()
def main() -> None:
    """Try the image, docker-compose.yml, the dashboards and the rules on a real engine."""
    begun = time.monotonic()
    rehearse()
    click.echo(f"deploy-test: passed in {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
