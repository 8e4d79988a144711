"""Published operation tables (the format of the OSDI'25 what-if analysis) as the same event tables as traces.

A Parquet table with one row per operation: `dp_rank`, `stage`, `step`, `optype`, `start_ts` and `duration` in seconds,
and where present `rank`, `seq_id` and `mb_id` (ByteDance-Seed/StragglerAnalysis). It is known by these columns, not by
its name. `reader` calls `table` (rows → columns) and `communication` (groups and peers), and writes columns as events.
"""
