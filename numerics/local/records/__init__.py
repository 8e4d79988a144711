"""A capture's tensors, put together from the parts that ranks held."""
