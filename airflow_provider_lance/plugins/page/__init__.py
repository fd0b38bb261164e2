"""The page of streams: which datasets are known, looks at them, charts, templates, the app."""
