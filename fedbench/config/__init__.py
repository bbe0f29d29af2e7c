"""From command line to checked values: schemas, registries, and every line of Hydra composition."""
