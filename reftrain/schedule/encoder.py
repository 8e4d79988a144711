"""Puts an image encoder into a lowered table: inside the first stage, or around the pipeline.

`inside` encodes the images of a micro-batch before its forward on the first stage and runs back after its backward
there; the tokens travel with the activations. `before` encodes all images on the first pipeline rank and broadcasts the
tokens; `replicated` lets every pipeline rank encode a share of the micro-batches and gathers them. These two hand
gradients back the same way ("Scaling Llama 3 Training", section 3.2.1, options 1 to 3).
"""

from dataclasses import replace

from reftrain.schedule.actions import ENCODER, Action, Kind, Schedule


def encoding_ranks(placement: str, table: Schedule) -> tuple[int, ...]:
    """Return the pipeline ranks that hold the encoder; none for a text model."""
    if placement == "inside":
        return tuple(sorted(set(table.owners(0))))
    return {"": (), "before": (0,), "replicated": tuple(range(table.ranks))}[placement]


def share(encoders: tuple[int, ...], micro_batches: int, rank: int) -> range:
    """Return the micro-batches with images that a pipeline rank encodes: consecutive ones, as even as can be padded."""
    if rank not in encoders:
        return range(0)
    each = -(-micro_batches // len(encoders))
    first = min(encoders.index(rank) * each, micro_batches)
    return range(first, min(first + each, micro_batches))


def with_encoder(lowered: Schedule, placement: str) -> Schedule:
    """Return the table with the encoder's actions in it; a text model's stays as it is."""
    encoders = encoding_ranks(placement, lowered)
    if not encoders or lowered.encoders:
        return lowered
    put = _inside if placement == "inside" else _around
    actions = tuple(put(lowered, encoders, rank) for rank in range(lowered.ranks))
    return replace(lowered, actions=actions, encoders=encoders)


def _around(table: Schedule, encoders: tuple[int, ...], rank: int) -> tuple[Action, ...]:
    own = share(encoders, table.micro_batches, rank)
    before = [Action(Kind.ENCODE, ENCODER, micro_batch) for micro_batch in own]
    after = [Action(Kind.GATHER_TOKENS, ENCODER, 0)]
    after += [Action(Kind.ENCODE_BACKWARD, ENCODER, micro_batch) for micro_batch in own]
    exchange = Action(Kind.SHARE_TOKENS, ENCODER, 0)
    return (*before, exchange, *table.actions[rank], *after, *_sums(table, encoders, tuple(own)))


def _inside(table: Schedule, encoders: tuple[int, ...], rank: int) -> tuple[Action, ...]:
    """Encode before each forward of the first stage; run back after its backward and its reduction."""
    out: list[Action] = []
    back: list[Action] = []
    for action in table.actions[rank]:
        if action.kind is not Kind.REDUCE_GRADIENT:
            out += back
            back = []
        first = action.stage == 0
        if first and action.kind is Kind.FORWARD:
            out.append(Action(Kind.ENCODE, ENCODER, action.micro_batch))
        out.append(action)
        if first and action.kind is Kind.BACKWARD:
            back.append(Action(Kind.ENCODE_BACKWARD, ENCODER, action.micro_batch))
    own = tuple(a.micro_batch for a in (*out, *back) if a.kind is Kind.ENCODE_BACKWARD)
    return (*out, *back, *(_sums(table, encoders, own) if rank in encoders else ()))


def _sums(table: Schedule, encoders: tuple[int, ...], own: tuple[int, ...]) -> list[Action]:
    """Reduce the encoder's gradients where a rank has some, and sum them over the ranks that hold the encoder."""
    last = own[-1] if own else table.micro_batches - 1
    sums = [Action(Kind.REDUCE_GRADIENT, ENCODER, last)] if own else []
    if len(encoders) > 1:
        sums.append(Action(Kind.SYNC_REPLICAS, ENCODER, last))
    return sums
