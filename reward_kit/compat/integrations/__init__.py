"""Bridges to other evaluation and training libraries, each in a module that is imported only when used."""
