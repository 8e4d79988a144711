"""Order plans: the file, the differences between two plans, and what a difference can reach."""

import msgspec
import pytest

from numerics.errors import CaptureError
from numerics.order.affected_tensors import affected_tensors, position
from numerics.order.order_plan import OrderPlan, Reduction, merged, read_plan, write_plan
from numerics.order.plan_differences import differences
from reftrain.config.file import load
from reftrain.replay.declared_plan import declared_plan

STEPS = (0, 3)


def plan_of(tables) -> OrderPlan:
    base = {"model": {"layers": 3}, "data": {"batch_size": 12}, "run": {"steps": 3}}
    merged_tables: dict[str, dict[str, object]] = {}
    for source in (base, tables):
        for table, values in source.items():
            merged_tables.setdefault(table, {}).update(values)
    return declared_plan(load(None, merged_tables), None)


def changed(plan: OrderPlan, label: str, **fields: object) -> OrderPlan:
    reductions = [msgspec.structs.replace(r, **fields) if r.label == label else r for r in plan.reductions]
    return msgspec.structs.replace(plan, source="recorded", reductions=tuple(reductions))


def without(plan: OrderPlan, label: str) -> OrderPlan:
    kept = tuple(r for r in plan.reductions if r.label != label)
    return msgspec.structs.replace(plan, source="recorded", reductions=kept)


def test_a_plan_is_what_was_written(tmp_path):
    plan = plan_of({"mesh": {"tp": 2, "cp": 2, "dp": 3}})
    write_plan(tmp_path, plan)
    assert read_plan(tmp_path) == plan
    assert not list(tmp_path.glob(".*"))


def test_no_plan_is_none(tmp_path):
    assert read_plan(tmp_path) is None


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b'{"schema": "other/1"}', b"\xff\xfe", b'{"reductions": "x"}', b"[" * 100_000],
)
def test_a_damaged_plan_is_refused(tmp_path, content):
    (tmp_path / "order_plan.json").write_bytes(content)
    with pytest.raises(CaptureError, match=r"order_plan\.json"):
        read_plan(tmp_path)


def test_another_schema_is_refused(tmp_path):
    plan = msgspec.structs.replace(plan_of({}), schema="numerics.orders/9")
    write_plan(tmp_path, plan)
    with pytest.raises(CaptureError, match=r"numerics\.orders/9"):
        read_plan(tmp_path)


def test_ranks_of_a_group_tell_it_once():
    one = Reduction(
        label="a", axis="tp", op="all_reduce", phase="forward", dtype="float32", group=(0, 1), operands=(0,)
    )
    other = msgspec.structs.replace(one, group=(2, 3))
    assert merged([[one], [one], [other], [other]]) == (one, other)


@pytest.mark.parametrize(
    ("label", "fields", "field", "words"),
    [
        ("layers.1.attention.wo", {"dtype": "float16"}, "dtype", "is done in float16, not bfloat16"),
        ("layers.1.grad", {"reduction": "avg"}, "reduction", "combines by avg, not sum"),
        ("stages.0", {"scale": 0.5}, "scale", "is scaled by 0.5, not 1"),
        ("layers.1.attention.wo", {"operands": (0, 1, 2)}, "count", "is done 3 times a step, not 4"),
        ("stages.0", {"operands": (3, 2, 1, 0)}, "order", "in the order 3,2,1,0, not 0,1,2,3"),
        ("stages.0", {"cuts": (0, 1, 2, 3)}, "cuts", "reduced after the micro-batches 0,1,2,3, not 3"),
        ("layers.1.grad", {"layout": ()}, "layout", "in another order"),
        ("layers.1.grad", {"bounds": ((0, 1),)}, "bounds", "cuts its buffer at other places"),
    ],
)
def test_each_field_of_a_reduction_is_compared(label, fields, field, words):
    declared = plan_of({"mesh": {"tp": 2, "dp": 3}})
    found = differences(changed(declared, label, **fields), declared)
    assert field in {d.field for d in found}
    assert all(d.label == label for d in found)
    sentence = next(d.sentence for d in found if d.field == field)
    assert words in sentence
    assert (", ranks 0, " in sentence) == (label != "stages.0")  # micro-batches are added without a group


def test_missing_and_extra_reductions_are_named():
    declared = plan_of({"mesh": {"tp": 2, "dp": 3}})
    recorded = without(declared, "layers.1.attention.wo")
    missing = differences(recorded, declared)
    assert {d.field for d in missing} == {"missing"}
    assert {d.ranks for d in missing} == {(0, 1), (2, 3), (4, 5)}
    extra = differences(declared, recorded)
    assert {d.field for d in extra} == {"extra"}


def test_equal_plans_reach_nothing():
    plan = plan_of({"mesh": {"tp": 2, "dp": 3}})
    assert not affected_tensors(plan, plan).may_differ(0, "forward", "activation", "layers.0.out")
    assert not affected_tensors(plan, plan).may_differ(5, "step", "param", "norm.weight")


def test_data_parallelism_reaches_gradients_only():
    """The same micro-batches on twice the ranks: activations and their gradients of the first step are equal."""
    found = affected_tensors(plan_of({"mesh": {"dp": 2}}), plan_of({"mesh": {"dp": 4}}))
    assert not found.may_differ(0, "forward", "activation", "layers.2.out")
    assert not found.may_differ(0, "backward", "activation_grad", "layers.0.out.grad")
    assert found.may_differ(0, "reduce", "param_grad", "layers.0.ffn_norm.weight.grad")
    assert found.may_differ(0, "reduce", "scalar", "grad_norm")
    assert found.may_differ(0, "step", "param", "layers.0.ffn_norm.weight")
    assert found.may_differ(1, "forward", "activation", "layers.0.out")
    assert not found.may_differ(-1, "init", "param", "layers.0.ffn_norm.weight")


def test_a_forward_difference_reaches_what_comes_after():
    declared = plan_of({"mesh": {"tp": 2}})
    found = affected_tensors(changed(declared, "layers.1.feed_forward.w2", dtype="float32"), declared)
    assert not found.may_differ(0, "forward", "activation", "layers.1.attention.out")
    assert not found.may_differ(0, "forward", "activation", "layers.1.feed_forward.w1.out")
    assert found.may_differ(0, "forward", "activation", "layers.1.out")
    assert found.may_differ(0, "forward", "activation", "output.logits")
    assert found.may_differ(0, "backward", "activation_grad", "layers.0.out.grad")


def test_a_backward_difference_reaches_what_the_gradient_reaches():
    declared = plan_of({"mesh": {"tp": 2}})
    found = affected_tensors(changed(declared, "layers.1.attention.qkv.grad", dtype="float32"), declared)
    assert not found.may_differ(0, "forward", "activation", "output.logits")
    assert not found.may_differ(0, "backward", "activation_grad", "layers.2.ffn_norm.out.grad")
    assert found.may_differ(0, "backward", "activation_grad", "layers.1.attention_norm.out.grad")
    assert found.may_differ(0, "reduce", "param_grad", "layers.0.ffn_norm.weight.grad")
    assert not found.may_differ(0, "reduce", "param_grad", "norm.weight.grad")


def test_another_local_shape_reaches_everything():
    """Micro-batches of another size change matrix products, which no reduction tells."""
    found = affected_tensors(
        plan_of({"mesh": {"dp": 2}}), plan_of({"data": {"micro_batch_size": 2}, "mesh": {"dp": 2}})
    )
    assert found.may_differ(0, "forward", "activation", "tok_embeddings.out")


def test_a_later_difference_leaves_earlier_steps_alone():
    declared = plan_of({"mesh": {"dp": 3}})
    label = "layers.1.grad"
    late = changed(declared, label, reduction="avg", steps=(2, 3))
    first = msgspec.structs.replace(next(r for r in declared.reductions if r.label == label), steps=(0, 2))
    kept = tuple(r for r in declared.reductions if r.label != label)
    left = msgspec.structs.replace(late, reductions=(*late.reductions, first))
    right = msgspec.structs.replace(
        declared,
        reductions=(*kept, first, msgspec.structs.replace(first, steps=(2, 3))),
    )
    found = affected_tensors(left, right)
    assert not found.may_differ(1, "reduce", "param_grad", "layers.1.ffn_norm.weight.grad")
    assert found.may_differ(2, "reduce", "param_grad", "layers.1.ffn_norm.weight.grad")


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("tok_embeddings", "layers.0.attention_norm.out"),
        ("layers.0.attention.qkv.grad", "layers.0.attention.wo"),
        ("layers.0.attention.kv.grad", "layers.0.attention.wo.out"),
        ("layers.0.feed_forward.w1.in", "layers.0.feed_forward.w2.out"),
        ("layers.0.out", "layers.1.attention_norm.out"),
        ("layers.9.out", "layers.10.out"),
        ("layers.3.out", "norm.out"),
        ("norm.out", "output.logits"),
        ("output.logits", "loss.sums"),
    ],
)
def test_positions_follow_the_forward(earlier, later):
    assert position(earlier) < position(later)


def test_unknown_names_have_no_position():
    assert position("stages.1.in") is None
    assert position("layers.0.router.out") is None


def test_an_order_that_nobody_recorded_reaches_everything():
    """NCCL does not tell how it sums, so that equal plans prove nothing."""
    plan = plan_of({"mesh": {"dp": 3}})
    other = msgspec.structs.replace(plan, local=plan.local | {"backend": "nccl"})
    assert affected_tensors(other, other).may_differ(0, "forward", "activation", "layers.0.out")
