"""The processes that the tests of this folder share."""

from collections.abc import Iterator

import pytest

from tests.training.worlds import Worlds


@pytest.fixture(scope="session")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worlds]:
    started = Worlds(tmp_path_factory.mktemp("worlds"))
    yield started
    started.stop()
