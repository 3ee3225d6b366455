"""What is shown of a result: tables, figures and the page they stand on."""
