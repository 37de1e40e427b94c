"""From a data set to windows of batches."""
