"""The runs folder: layout, stored evaluations, resume."""
