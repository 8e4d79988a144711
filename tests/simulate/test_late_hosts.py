"""Late hosts whose messages arrive meanwhile: the traces do not show when compute would need them."""

import pytest

import tracekit
from reftrain.config.trace_forms import FORMS, NEWEST
from tests.simulate.case import setup_of, written

LOADER = "late_data:rank=1,delay_ms=200"
PAUSES = "pauses:rank=1,pause_ms=80,every=4"


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("mesh", "text", "form", "waits"),
    [
        ({"pp": 2, "dp": 2}, LOADER, NEWEST, False),
        ({"pp": 2, "dp": 2}, LOADER, "2.1", True),
        ({"pp": 4}, PAUSES, NEWEST, False),
    ],
)
def test_messages_that_a_late_host_skips_lower_its_price(tmp_path, mesh, text, form, waits):
    """Without its delay it would wait for messages of the first stage, and no call of its host says so."""
    tables = {"model": {"layers": 2 * mesh["pp"], "vocab_size": 32000}}
    setup, config = setup_of(mesh, text, tables=tables, merge=False, host_waits=waits)
    outcome = written(tmp_path, setup, config, detail="kernels", form=FORMS[form])
    found = tracekit.slowrank(tracekit.load([str(tmp_path / "trace")]))
    assert (found.verdict, [s.rank for s in found.suspects]) == ("slow_rank", [1])
    gain = outcome.summary.mean_step_ms - outcome.healthy.mean_step_ms
    assert found.suspects[0].lost_ms_low <= gain <= found.suspects[0].lost_ms_high
