"""An explicit-state model of the turn protocol, and the search that checks it (README.md). Knows no Django."""
