"""The command line: one module per command, results on stdout, everything else on stderr."""
