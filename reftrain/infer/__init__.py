"""Inference on the trainer's model: prefill and decode with a cache of keys and values, and what layouts of it cost."""
