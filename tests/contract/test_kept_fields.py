"""What docs/policy.md promises of JSON answers: within a schema number no field goes and none changes its type."""

from tests.contract.kept_fields import FILE, SCHEMAS, fields_of

KEPT = FILE.read_text().splitlines()


def test_no_field_goes_within_its_schema_number():
    gone = sorted(set(KEPT).difference(*map(fields_of, SCHEMAS)))
    assert not gone, "these need a new schema number, and the changelog's first lines"


def test_new_fields_are_kept_from_now_on():
    new = sorted(set().union(*map(fields_of, SCHEMAS)) - set(KEPT))
    assert not new, "run python -m tests.contract.kept_fields"


def test_another_type_or_an_absent_field_counts_as_gone():
    def schema(kind, required):
        return {"$id": "x/1", "$defs": {}, "properties": {"a": {"type": kind}}, "required": required}

    kept = fields_of(schema("integer", ["a"]))
    assert kept == {"x/1 a: integer"}
    for changed in (schema("string", ["a"]), schema("integer", [])):
        assert not kept & fields_of(changed)
