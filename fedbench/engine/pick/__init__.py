"""Which device and engine a run gets: timed steps and measured memory."""
