"""Draw."""
def add_command(p): pass
def run(o): return 0
