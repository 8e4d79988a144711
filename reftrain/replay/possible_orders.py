"""The order in which a replay adds micro-batches: as recorded, where that is a possible order of the declared ones."""

from numerics.order.order_plan import OrderPlan
from reftrain.config.run import RunConfig
from reftrain.layout.declaration import Declaration
from reftrain.replay.formats import Orders, StageOrder


def possible_orders(recorded: OrderPlan | None, config: RunConfig) -> Orders:
    """Return the order of accumulation of every stage on every pipeline rank that computes it."""
    declared = Declaration(config)
    table, stages = declared.pipeline, declared.numbers
    places = [(stage, pp) for stage in stages for pp in table.owners(stage) if table.added(stage, pp)]
    return {place: _possible_order(recorded, declared, *place) for place in places}


def _possible_order(recorded: OrderPlan | None, declared: Declaration, stage: int, pp: int) -> StageOrder:
    """Return the order as recorded, or ascending where the micro-batches are not the declared ones."""
    own = tuple(sorted(declared.pipeline.added(stage, pp)))
    known = [r for r in recorded.reductions if r.label == f"stages.{stage}"] if recorded else []
    found = next((r for r in known if r.operands and tuple(sorted(r.operands)) == own), None)
    if found is None:
        return StageOrder(own, frozenset(own[-1:]))
    cuts: set[int] = set()
    if declared.config.mesh.shards_gradients or declared.pipeline.schedule.replicas > 1:
        cuts = set(found.cuts) & set(own)
    return StageOrder(found.operands, frozenset(cuts | {found.operands[-1]}))
