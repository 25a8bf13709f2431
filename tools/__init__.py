"""What authors and graders run: `python -m tools.NAME`, or the Makefile's targets."""
