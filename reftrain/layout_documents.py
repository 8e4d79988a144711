"""The answers of `reftrain plan` and `reftrain infer` as JSON, for `reftrain.documents`: layouts and what they cost."""

from typing import Literal, TypedDict

Axes = dict[str, int]
"""Sizes by axis."""


class LayoutDocument(TypedDict):
    """A layout: seconds of a prompt's prefill and of a decode step, generated tokens a second of all devices.

    `memory_bytes` is of a device: weights and cache; in a measured answer the cache alone.
    """

    tp: int
    replicas: int
    sharding: str
    memory_bytes: int
    prefill_s: float
    decode_s: float
    tokens_per_s: float
    fits: bool


class AnswerDocument(TypedDict):
    """A request's tokens, prompt and answer."""

    number: int
    tokens: list[int]


class InferDocument(TypedDict):
    """Layouts measured on this machine (one), or projected on `hardware`; `answers` of the requests that were run."""

    schema: Literal["reftrain.infer/1"]
    measured: bool
    hardware: str
    devices: int
    layouts: list[LayoutDocument]
    answers: list[AnswerDocument]


class ChoiceDocument(TypedDict):
    """A mesh with its fastest schedule that fits; `exposed` as shares of the step by axis."""

    mesh: Axes
    schedule: str
    virtual_stages: int
    consecutive: int
    micro_batches: int
    zero: int
    recompute: str
    tflops_per_gpu: float
    mfu: float
    step_s: float
    memory_gib: float
    bubble: float
    exposed: dict[str, float]
    network_gb: float
    tie: bool
    note: str
    tp_beyond_node: bool


class RejectedDocument(TypedDict):
    """A mesh that is not taken; `step_s` is null where it has no projection."""

    mesh: Axes
    reason: str
    step_s: float | None


class PlanDocument(TypedDict):
    """The answer of `reftrain plan`; `choices` by projected time, `taken` the one of them to take."""

    schema: Literal["reftrain.plan/1"]
    hardware: str
    gpus: int
    sharding: str
    seq_len: int
    sequences: int
    kernels: str
    taken: Axes
    warnings: list[str]
    choices: list[ChoiceDocument]
    rejected: list[RejectedDocument]
