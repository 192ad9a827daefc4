"""Embedding shard: table pieces in one fbgemm TBE on keeper-owned memory. Needs fbgemm, not TorchRec."""
