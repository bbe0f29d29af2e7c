"""Which device and engine a run gets: timed steps and predicted memory."""
