"""Dense-replica synchronization algorithms on plain tensors. No Ray import."""
