"""The repairs and doubts of a Kineto file as quality rows."""

from collections import Counter

from tracekit.findings import Quality

SAID = {
    "absurd_duration": "longer than a day; ended with the recording",
    "absurd_timestamp": "start out of range; event dropped",
    "bad_utf8": "bytes replaced",
    "base_time_unusable": "baseTimeNanoseconds ignored",
    "duplicate_key": "the last value counts",
    "group_members_unknown": "member list cut, and neither start and stride nor pg_config complete it",
    "integer_overflow": "value dropped",
    "malformed_arguments": "`args` is not an object; arguments dropped",
    "malformed_event": "no valid JSON object; skipped",
    "metadata_cut": "too much text behind the events",
    "missing_duration": "taken as 0",
    "missing_timestamp": "event dropped",
    "negative_duration": "taken as 0",
    "nested_communication_record": "the outer of two nested records stays",
    "non_integer_value": "value dropped",
    "not_a_number": "NaN or infinite; taken as missing",
    "oversized_event": "skipped",
    "overlapping_kernels": "on one stream, by more than 1 us; kept as recorded",
    "rank_by_groups": "its name gives another number or none; its process groups show the rank in the job",
    "rank_in_no_group": "no process group of the file holds the file's own rank",
    "trailing_bytes": "bytes behind the compressed data; ignored",
    "value_out_of_range": "no job has such a number; value dropped",
    "unpaired_begin_end": "begin without end, or end without begin; dropped",
}
"""Detail of each kind of repair; the scanner and its helpers count them by these names."""


def quality_rows(
    label: str, issues: Counter[str], truncated: bool, damage: str | None, rows: int
) -> tuple[Quality, ...]:
    """Return one row per kind in `issues`, sorted; a truncated file comes first.

    damage: what is wrong with the compressed data, if anything is. rows: events kept.
    """
    found = [
        Quality(kind, label, count, SAID.get(kind, "")) for kind, count in sorted(issues.items()) if count > 0
    ]
    if truncated:
        detail = damage or "the file ends inside its events"
        found.insert(0, Quality("truncated_file", label, 1, detail, kept_events=rows))
    return tuple(found)
