"""What is computed, and where it can be corrupted.

Networks are written once, as layers and combinators.  Each layer has its forward and its backward
pass side by side.  Nothing here knows of injection files, epochs or verdicts.
"""
