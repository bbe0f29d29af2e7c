"""The parts of `gpu_check.py`: what the machine has, engines, benchmark, tables, report."""
