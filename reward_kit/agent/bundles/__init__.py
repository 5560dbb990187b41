"""The parts of a ``TaskBundle``: rows, datasets, seeds, and the import of a bundle's modules."""
