"""Measurements side by side with what a user would choose instead. Begin with bench/README.md.

make bench                            # every suite with speed targets; keeps dated files in bench/results/
make bench ARGS="--quick"             # masked attention in a minute or less; keeps nothing
make bench ARGS="native statistics --patient"
"""
