"""The command line: Hydra's application, the configs it can find, and the errors and tables it prints."""
