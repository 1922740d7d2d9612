"""Side-by-side measurements against what a user would pick instead. Run from the root of the repository:

    make bench                            # all cases at the base size, keeps a dated file in bench/results/
    make bench ARGS="--quick"             # a minute or less, keeps nothing
    make bench ARGS="--cases window --flex"

cases.py     the masks and sizes that are measured
rivals.py    who competes: PyTorch's attention in its forms, FlexAttention, the engines of rearview
judge.py     nobody is timed before the answer and the gradients agree with the float64 reference
measure.py   interleaved rounds: every contestant once a round, so that a busy moment hits them all
noise.py     what other programs took of the processors meanwhile
lowering.py  what it costs to turn a mask into ranges, in a process of its own
plain.py     GPT as most people write it
training.py  whole training steps, and how well they learn (python -m bench training)
generation.py  tokens one at a time: the cache, no cache, transformers (python -m bench generation)
statistics.py  statistics of attention against a forward pass (python -m bench statistics)
statistics_gpu.py  the same on a GPU (python -m bench statistics_gpu)
observe.py   watching a model as its input grows (python -m bench observe)
transformers_sweep.py  transformers' models on our engines (python -m bench transformers_sweep)
audit_sweep.py  the auditor over the causal language models of transformers (python -m bench audit_sweep)
native.py    the CPU kernel against SDPA, case by case (python -m bench native)
targets.py   the numbers that this project promises, met or not
table.py     one table, drawn for a terminal, a pipe or a file
results.py   the machine, and the dated file
"""
