"""Training in several processes: who they are, how they share a batch, a model and a checkpoint.

`world` is this process among the others, on torch.distributed. `division` cuts a batch into the parts of the
processes. `copies` and `sharding` keep a model in step on all of them, by DDP and by FSDP2. `launcher` starts the
processes on one machine.
"""
