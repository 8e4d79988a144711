import pytest

from tests.reftrain.pool import RankPool


@pytest.fixture(scope="package")
def pool():
    made = RankPool(8)
    yield made
    made.close()
