"""The command line, one file per command: `add` gives its parser the arguments, `run` carries it out."""
