"""The method interface (`method.py`, `contract.py`), the loop (`simulation.py`), the engines that train clients."""
