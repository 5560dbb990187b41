"""tau-bench's results files, both ways: written from an evaluation, and judged anew with a bundle."""
