"""Everything that runs as a process: Ray actors, the keeper, the coordinator and the command line."""
