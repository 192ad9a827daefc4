"""Which shard owns which rows: TorchRec's planner under a memory budget, and the estimate printed before a run."""
