"""Plan -> nodes: contact, node bundle, Ansible adapter, journal, run directory, the flow."""
