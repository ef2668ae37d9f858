"""Protocol buffers of the controller, written from its published interface, and the stubs generated from them."""
