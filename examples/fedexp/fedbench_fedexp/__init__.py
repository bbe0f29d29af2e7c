"""FedExP, a method of fedbench that lives in a package of its own."""
