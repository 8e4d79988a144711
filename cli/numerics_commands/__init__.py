"""The commands of `numerics`."""
