"""What commands share that ask a capture's server over HTTP: whom, as whom, and how its answers are shown."""
