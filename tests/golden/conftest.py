"""The shipped bundle and the same model in float32, opened."""

import pytest

from dragoman.bundle.manifest import Bundle, open_bundle
from tests.golden.shipped import BUNDLE, FLOAT32_BUNDLE


@pytest.fixture(scope="session")
def bundle() -> Bundle:
    if not BUNDLE.is_dir():
        pytest.fail(f"{BUNDLE} is missing; `make bundle` exports it")
    return open_bundle(BUNDLE)


@pytest.fixture(scope="session")
def float32_bundle() -> Bundle:
    if not FLOAT32_BUNDLE.is_dir():
        pytest.fail(f"{FLOAT32_BUNDLE} is missing; `make test` exports it before it runs the tests")
    return open_bundle(FLOAT32_BUNDLE)
