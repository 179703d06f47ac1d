"""Programs that run under the Python which can load py-rattler. They are sent as text: they import nothing of ours."""
