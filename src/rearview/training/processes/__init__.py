"""Training in several processes: how they find each other, and how they share a batch, a model and a checkpoint.

`world` is this process among the others, on torch.distributed. `division` divides a batch between the processes.
`replication` keeps a model in step on all of them, by DDP or by FSDP2. `shared_steps` is the part of this process in a
step. `launcher` starts the processes on one machine.
"""
