from collections.abc import Callable
from pathlib import Path

import pytest

from dragoman.service.cli.documentation import cli_page, metrics_page

DOCS = Path(__file__).parents[4] / "docs"


@pytest.mark.parametrize(("name", "page"), [("cli.md", cli_page), ("metrics.md", metrics_page)])
def test_a_generated_page_is_up_to_date(name: str, page: Callable[[], str]) -> None:
    assert (DOCS / name).read_text() == page(), "run: python -m dragoman.service.cli.documentation docs"
