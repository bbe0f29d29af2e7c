"""From a command line to checked dataclasses: the YAMLs, Hydra's composition, fields with domains, messages."""
