"""The trainer as a process: Hogwild threads, reader, reporter and synchronizer around the loop in ``trainer``."""
