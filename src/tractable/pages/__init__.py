"""How results are shown: tables, figures and the page that holds them."""
