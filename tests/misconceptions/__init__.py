"""Known wrong answers of every exercise, and the harness that proves each is refused for the right reason."""
