"""The processes that the tests of this folder share."""

from collections.abc import Iterator

import pytest

from tests.parallel.processes import Processes


@pytest.fixture(scope="session")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    started = Processes(tmp_path_factory.mktemp("ranks"))
    yield started
    started.stop()
