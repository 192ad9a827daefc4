"""What a save costs training: Penumbra's and torch DCP's on the same live tables in the same run."""
