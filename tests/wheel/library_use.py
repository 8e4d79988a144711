"""What a program does with the library, with nothing but the wheel and its extras: run by `python -m tests.wheel`."""

import sys

import pandas as pd
import ray

import tracekit
from tracekit.interop import hta

run = tracekit.load(sys.argv[1])
found = run.slowrank()
assert found.to_pandas()["rank"].tolist() == [5]
assert found.to_arrow().to_pydict()["rank"] == [5]
parts = run.breakdown().to_pandas()
ours = [n for n in parts.columns[list(parts.columns).index("compute_ns") :] if n.endswith("_ns")]
assert (parts[ours].fillna(0).sum(axis=1) == parts["step_ns"]).all()
assert len(run.operations().to_pandas()) == run.operations().num_rows > 0
assert "rank 5" in found._repr_html_()
events = hta(run).t.get_trace(5)
assert isinstance(events, pd.DataFrame)
assert len(events) > 0
assert ray.__version__
print("works")
