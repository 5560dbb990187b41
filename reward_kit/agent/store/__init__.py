"""The runs folder, and the file of an evaluation: layout, writing, reading, resume."""
