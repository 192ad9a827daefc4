"""The actor that owns a run: work, placement, supervision, summary."""
