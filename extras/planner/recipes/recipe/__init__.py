"""What the recipes of this folder share: one concept a file."""
