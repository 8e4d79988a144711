"""Pipeline schedules, and the messages that go with them.

A plan is a list of steps for one stage: `("F", chunk, micro-batch)`, `("B", …)`, and `("X", [message, …])`, with a
A plan is a list of steps for one stage: `("F", chunk, micro-batch)`, `("B", …)` and `("X", [message, …])`, with a
the computation and, at the same moment, the receive into the peer's list: one order for both, so nothing blocks.
"""

Plan = list[tuple]


def actions(schedule: str, stage: int, stages: int, micro: int, chunks: int) -> list[tuple[str, int, int]]:
    """Computations of a stage in order: (F or B, chunk, micro-batch)."""
    if schedule == "gpipe":
        forward = [("F", chunk, m) for chunk in range(chunks) for m in range(micro)]
        return forward + [("B", chunk, m) for chunk in reversed(range(chunks)) for m in range(micro)]
    if chunks == 1:
        warm = min(micro, stages - 1 - stage)
        order = [("F", 0, m) for m in range(warm)]
        for m in range(micro - warm):
            order += [("F", 0, m + warm), ("B", 0, m)]
        return order + [("B", 0, m) for m in range(micro - warm, micro)]
    return interleaved(stage, stages, micro, chunks)


def interleaved(stage: int, stages: int, micro: int, chunks: int) -> list[tuple[str, int, int]]:
    """Megatron's interleaved 1F1B; micro must be a multiple of stages."""
    forward = [
        ("F", chunk, start + m)
        for start in range(0, micro, stages)
        for chunk in range(chunks)
        for m in range(stages)
    ]
    backward = [("B", chunks - 1 - chunk, m) for _, chunk, m in forward]
    warm = min(len(forward), (stages - stage - 1) * 2 + (chunks - 1) * stages)
    order = forward[:warm]
    for f, b in zip(forward[warm:], backward, strict=False):
        order += [f, b]
    return order + backward[len(forward) - warm :]


def lowered(schedule: str, stages: int, micro: int, chunks: int, fuse: bool) -> list[Plan]:
    """Plans of all stages of any schedule, with messages in one common order."""
    todo = [actions(schedule, stage, stages, micro, chunks) for stage in range(stages)]
    plans: list[Plan] = [[] for _ in range(stages)]
    have: set[tuple] = set()
    at = [0] * stages
    while any(at[s] < len(todo[s]) for s in range(stages)):
        moved = False
        for stage in range(stages):
            if at[stage] < len(todo[stage]) and ready(todo[stage][at[stage]], stage, stages, chunks, have):
                place(todo[stage][at[stage]], stage, stages, chunks, have, plans)
                at[stage] += 1
                moved = True
        if not moved:
            raise RuntimeError(f"schedule {schedule} blocks itself")
    return [fused(plan) if fuse else plan for plan in plans]


def ready(action: tuple, stage: int, stages: int, chunks: int, have: set[tuple]) -> bool:
    """Whether the input of a computation is there."""
    kind, chunk, micro = action
    virtual = chunk * stages + stage
    if kind == "F":
        return virtual == 0 or ("F", virtual - 1, micro) in have
    return ("F", virtual, micro) in have and (
        virtual == stages * chunks - 1 or ("B", virtual + 1, micro) in have
    )


def place(action: tuple, stage: int, stages: int, chunks: int, have: set[tuple], plans: list[Plan]) -> None:
    """Append a computation, its send, and the peer's receive."""
    kind, chunk, micro = action
    virtual = chunk * stages + stage
    have.add((kind, virtual, micro))
    plans[stage].append(action)
    target = virtual + 1 if kind == "F" else virtual - 1
    if 0 <= target < stages * chunks and target % stages != stage:
        plans[stage].append(("X", [(True, target % stages, kind)]))
        plans[target % stages].append(("X", [(False, stage, kind)]))


def fused(plan: Plan) -> Plan:
    """The plan with neighbouring messages in one batch."""
    found: Plan = []
    for item in plan:
        if item[0] == "X" and found and found[-1][0] == "X":
            found[-1] = ("X", found[-1][1] + item[1])
        else:
            found.append(item)
    return found


def one_f_one_b(stages: int, micro: int) -> list[Plan]:
    """Megatron's 1F1B: sends and receives of the steady state go together."""
    plans: list[Plan] = []
    for stage in range(stages):
        plan: Plan = []
        before, after = stage - 1, stage + 1

        def talk(*messages: tuple, plan: Plan = plan) -> None:
            kept = [m for m in messages if 0 <= m[1] < stages]
            if kept:
                plan.append(("X", kept))

        warm = min(micro, stages - 1 - stage)
        for m in range(warm):
            talk((False, before, "F"))
            plan.append(("F", 0, m))
            talk((True, after, "F"))
        if micro > warm:
            talk((False, before, "F"))
        for m in range(micro - warm):
            plan.append(("F", 0, m + warm))
            talk((True, after, "F"), (False, after, "B"))
            plan.append(("B", 0, m))
            talk((True, before, "B"), *([] if m == micro - warm - 1 else [(False, before, "F")]))
        for m in range(micro - warm, micro):
            talk((False, after, "B"))
            plan.append(("B", 0, m))
            talk((True, before, "B"))
        plans.append(plan)
    return plans


def deepspeed(stages: int, micro: int) -> list[Plan]:
    """DeepSpeed's TrainSchedule: each message alone, in turns that even and odd stages take oppositely."""
    return [_deepspeed(stage, stages, micro) for stage in range(stages)]


def _deepspeed(stage: int, stages: int, micro: int) -> Plan:
    plan: Plan = []
    before = -1
    for step in range(2 * (micro + stages - 1)):
        now, forward = _micro_batch(step, stage, stages)
        if forward:
            if 0 <= before < micro and stage > 0:
                plan.append(("X", [(True, stage - 1, "B")]))
            if 0 <= now < micro and stage > 0:
                plan.append(("X", [(False, stage - 1, "F")]))
        else:
            if 0 <= now < micro and stage < stages - 1:
                plan.append(("X", [(False, stage + 1, "B")]))
            if 0 <= before < micro and stage < stages - 1:
                plan.append(("X", [(True, stage + 1, "F")]))
        if 0 <= now < micro:
            plan.append(("F" if forward else "B", 0, now))
        before = now
    return plan


def _micro_batch(step: int, stage: int, stages: int) -> tuple[int, bool]:
    even = step % 2 == 0
    if even == (stage % 2 == 0):
        return (step // 2 if even else (step - 1) // 2) - stage // 2, True
    if even:
        return step // 2 - stages + (stage + 1) // 2, False
    return (step - 1) // 2 - stages + 1 + stage // 2, False
