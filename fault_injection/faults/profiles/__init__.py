"""Defect profiles: how one faulty device errs.  Those that are shipped are the files `*.toml` of this folder."""
