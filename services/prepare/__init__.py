"""``penumbra prepare``: text to Parquet over Ray Data, resumable, with a report."""
