"""What every room may use: identifiers, errors, limits, ports, budgets. Imports nothing else of Tailrace."""
