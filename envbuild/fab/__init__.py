"""The folder that `fab -r` searches; it holds nothing but the tasks, because fab puts it on Python's path."""
