"""Call the controller: one module per subject, joined in `controller` (controller §4)."""
