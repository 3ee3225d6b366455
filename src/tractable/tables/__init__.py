"""Tables: reads them from files, encodes them as arrays, and makes models from formulas."""
