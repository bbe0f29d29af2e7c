"""fedbench: a benchmark harness for personalised and clustered federated learning."""

__version__ = "0.1.0"
