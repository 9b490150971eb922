//! Safe PJRT: plugin, client, buffer, executable, event, topology.
