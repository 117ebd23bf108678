"""The machine: environment, processes, files, errors."""
