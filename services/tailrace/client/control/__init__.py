"""Call the controller: one module per subject, joined in `controller` (docs/protocol/controller.md#calls)."""
