"""What an optimiser steps in the place of a model's weights: wide copies of them, of their shards, or flat ones."""
