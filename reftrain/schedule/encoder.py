"""Puts an image encoder around a lowered table: images are encoded before the pipeline, and run back after it.

`before` encodes all images on the first pipeline rank and broadcasts the tokens; `replicated` lets every pipeline rank
encode a share of the micro-batches and gathers them. Both hand gradients back the same way ("Scaling Llama 3 Training",
section 3.2.1, options 2 and 3).
"""

from dataclasses import replace

from reftrain.schedule.actions import ENCODER, Action, Kind, Schedule


def encoding_ranks(placement: str, ranks: int) -> tuple[int, ...]:
    """Return the pipeline ranks that hold the encoder; none for a text model."""
    return {"": (), "before": (0,), "replicated": tuple(range(ranks))}[placement]


def share(encoders: tuple[int, ...], micro_batches: int, rank: int) -> range:
    """Return the micro-batches with images that a pipeline rank encodes: consecutive ones, as even as can be padded."""
    if rank not in encoders:
        return range(0)
    each = -(-micro_batches // len(encoders))
    first = min(encoders.index(rank) * each, micro_batches)
    return range(first, min(first + each, micro_batches))


def with_encoder(lowered: Schedule, placement: str) -> Schedule:
    """Return the table with the encoder's actions around it; a text model's stays as it is."""
    encoders = encoding_ranks(placement, lowered.ranks)
    if not encoders or lowered.encoders:
        return lowered
    actions = tuple(_around(lowered, encoders, rank) for rank in range(lowered.ranks))
    return replace(lowered, actions=actions, encoders=encoders)


def _around(table: Schedule, encoders: tuple[int, ...], rank: int) -> tuple[Action, ...]:
    own = share(encoders, table.micro_batches, rank)
    last = own[-1] if own else table.micro_batches - 1
    after = [Action(Kind.GATHER_TOKENS, ENCODER, 0)]
    after += [Action(Kind.ENCODE_BACKWARD, ENCODER, micro_batch) for micro_batch in own]
    if own:
        after.append(Action(Kind.REDUCE_GRADIENT, ENCODER, last))
    if len(encoders) > 1:
        after.append(Action(Kind.SYNC_REPLICAS, ENCODER, last))
    before = [Action(Kind.ENCODE, ENCODER, micro_batch) for micro_batch in own]
    return (*before, Action(Kind.SHARE_TOKENS, ENCODER, 0), *table.actions[rank], *after)
