"""Random cases under both trainers: whatever differs is a fault, or named among the differences."""
