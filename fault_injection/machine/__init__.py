"""The machine: its environment, the code that runs on it, its processes, its files, and mistakes at its keyboard."""
