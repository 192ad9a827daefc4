"""Dense side of a run: data, model, Hogwild loop, metrics. No Ray import."""
