"""Images: the same plan and the same node program as on nodes, rendered as a Dockerfile and its context."""
