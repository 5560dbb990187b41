"""Files that are copied into a written bundle, beside this package's tools and reward."""
