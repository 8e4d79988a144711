"""The Llama-3 decoder, cut into pipeline stages."""
