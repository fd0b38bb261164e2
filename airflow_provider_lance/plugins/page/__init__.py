"""The page of streams: known datasets, cached observations, charts, templates, the app."""
