"""The machinery of many experiments: jobs that may die, plans that are read with care, rates, pages and figures."""
