"""How ids, pooled rows and gradients travel between a trainer and its embedding shards."""
