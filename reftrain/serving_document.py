"""The answer of `reftrain infer` as JSON, for `reftrain.documents`."""

from typing import Literal, TypedDict


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
