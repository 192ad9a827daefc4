"""Click logs in, batches out: formats, category encoders, splits and readers."""
