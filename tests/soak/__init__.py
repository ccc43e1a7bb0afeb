"""What is done to the real processes for a long time: faults, load, and the report (scripts/soak)."""
