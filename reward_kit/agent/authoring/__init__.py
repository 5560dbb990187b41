"""Making, packing and listing bundles."""
