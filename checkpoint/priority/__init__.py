"""Which rows a priority or delta save takes: access counts, recently used rows, distances, dirty marks."""
