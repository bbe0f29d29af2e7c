"""The commands on methods, data and runs, each `python -m fedbench COMMAND`."""
