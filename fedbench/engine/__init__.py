"""The engine: the interface of methods, the engines that train clients, and the one loop over rounds."""
