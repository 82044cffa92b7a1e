"""S3 as a place of checkpoints and of data."""
