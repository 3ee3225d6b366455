"""Shows results: their tables, their figures, and the pages that hold these."""
