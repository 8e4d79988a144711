"""Columns of the tables that a `Run` holds. Times are integer nanoseconds since the epoch of the writer's clock.

The event table is the waist of tracekit: Kineto traces, flight-recorder dumps and published operation
tables all become these columns, one table a rank, and every analysis reads only these.
"""

import pyarrow as pa

DICT = pa.dictionary(pa.int32(), pa.string())

EVENTS = pa.schema(
    [
        pa.field("ts", pa.int64(), nullable=False),  # start, ns
        pa.field("dur", pa.int64(), nullable=False),  # ns, >= 0
        pa.field("cat", DICT),  # Kineto category: cpu_op, kernel, user_annotation, gpu_memcpy, ...
        pa.field("name", DICT),
        pa.field("pid", pa.int64()),  # null where the file holds no integer
        pa.field("tid", pa.int64()),
        pa.field("device", pa.int32()),  # args.device
        pa.field("stream", pa.int64()),  # args.stream
        pa.field(
            "correlation", pa.int64()
        ),  # args.correlation: joins a kernel to its launch; of a table's rows, to a computation
        pa.field("external_id", pa.int64()),  # args["External id"]
        # communication arguments, null on other rows
        pa.field("collective", DICT),  # args["Collective name"]
        pa.field("dtype", DICT),
        pa.field("in_nelems", pa.int64()),
        pa.field("out_nelems", pa.int64()),
        pa.field("in_split", DICT),
        pa.field("out_split", DICT),
        pa.field("group_size", pa.int32()),
        pa.field("group", pa.int32()),  # row in GROUPS, null where the members are unknown
        pa.field("pg_name", DICT),
        pa.field("pg_desc", DICT),
        pa.field("src_rank", pa.int32()),  # global rank; null when absent or negative
        pa.field("dst_rank", pa.int32()),
        pa.field("group_rank", pa.int32()),  # args.Rank: own rank in the group, of a message the peer's
        pa.field("seq", pa.int64()),
        pa.field("comms_id", DICT),
        pa.field(
            "input_peer", pa.int32()
        ),  # the peer's rank in the group: Concrete Inputs of c10d::send, recv_
        pa.field("grid", pa.int32()),  # args.grid[0] of a kernel of messages: no fewer than its channels
        pa.field(
            "wait_stream", pa.int64()
        ),  # args.wait_on_stream: of a cuda_sync event, the stream that its stream waits for
        pa.field(
            "wait_record", pa.int64()
        ),  # args.wait_on_cuda_event_record_corr_id: up to which launch there
        pa.field("flops", pa.int64()),  # of a matrix product or attention, from args["Input Dims"]
        pa.field("micro_batch", pa.int32()),  # operation tables only
    ]
)
"""One row per event with a duration (ph X, or paired B/E), of one rank, sorted by ts, then longest first."""

GROUPS = pa.schema(
    [
        pa.field("group", pa.int32(), nullable=False),
        pa.field("ranks", pa.list_(pa.int32()), nullable=False),  # sorted, unique: the key of a group
        pa.field("names", pa.list_(pa.string()), nullable=False),  # every name it carried on any rank, sorted
        pa.field("descs", pa.list_(pa.string()), nullable=False),  # every description, sorted
    ]
)
"""Process groups by member set: names repeat with other members on other ranks, member sets do not."""

RUN_SCHEMA = "tracekit.run/1"
