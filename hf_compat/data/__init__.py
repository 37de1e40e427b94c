"""From a data set to windows of batches: collators, samplers, loaders, sharding and resuming."""
