"""The command line: the commands, and Hydra's application behind runs and sweeps."""
