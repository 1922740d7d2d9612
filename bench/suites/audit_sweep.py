"""The auditor over the causal language models of transformers, tiny and random.

Every class of `MODEL_FOR_CAUSAL_LM_MAPPING` that its own configuration can build, with widths, depths, windows and
chunks made small, is audited in `quick` mode. The table has the verdict, the seconds, and the ops that the proof has no
rule for. A LEAKS counts as a false alarm until the source has been read; confirmed leaks are in KNOWN.
"""

from __future__ import annotations

import argparse
import multiprocessing
import queue
import re
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch

from bench.harness import Case, Report, Settings, Suite, Task
from bench.table import Table

BATCH, TIME, WINDOW = 2, 32, 8
QUICK_MODELS = 5
ORDER = ("PROVEN", "HELD", "INCONCLUSIVE", "LEAKS", "failed", "skipped")

# Settings that the defaults of transformers leave open, or that do not make a decoder. Applied after shrinking.
COMPLETED: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "deepseek_v2": {"num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "hrm_text": {"num_hidden_layers": 1, "num_layers_per_stack": None},
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "ministral": {"head_dim": 16},
    "nemotron": {"num_key_value_heads": 4, "head_dim": 16},
    "qwen4_exp_text": {
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 16,
        "indexer_budget": 8,
        "indexer_compress_ratio": 4,
    },
    "reformer": {
        "is_decoder": True,
        "axial_pos_embds": False,
        "attn_layers": ["local", "lsh"],
        "num_buckets": 4,
        "local_attn_chunk_length": 8,
        "lsh_attn_chunk_length": 8,
    },
    "xlm": {"causal": True, "is_encoder": True},
    "xlstm": {"qk_dim_factor": 1.0, "v_dim_factor": 1.0},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"layers_block_type": ["linear_attention", "hybrid", "hybrid"], "num_hidden_layers": 3},
    "zamba2": {
        "layers_block_type": ["linear_attention", "hybrid", "hybrid"],
        "num_hidden_layers": 3,
        "hybrid_layer_ids": [1, 2],
    },
}
# Sizes of windows and chunks: small enough for 32 positions to cross them more than once.
WINDOWS = (
    "sliding_window", "attention_chunk_size", "window_size", "attention_window_size", "sliding_window_size",
    "local_attention", "chunk_size", "mamba_chunk_size", "keep_window_size", "index_topk", "index_block_size",
)  # fmt: skip
NOT_CAUSAL = {
    "cpmant": "a prefix-LM by design: the prompt hears itself in both directions",
    "xlnet": "a permutation language model: without perm_mask every position hears all",
    "musicgen": "reads codebooks [batch x codebooks, time], not tokens [batch, time]",
    "musicgen_melody": "reads codebooks [batch x codebooks, time], not tokens [batch, time]",
}
# Confirmed by reading the source.
KNOWN = {
    "bamba": "decoding with its cache differs from the full pass, one by one as well",
    "jamba": "a prompt in two chunks: the second does not continue the state of the first",
    "moshi": "its cache keeps a window that the full pass does not apply",
    "prophetnet": "the n-gram stream views [batch, time, ngram, heads] as [batch, ngram, heads, time]",
    "reformer": "LSH attention sorts the whole sequence, so that chunks depend on what comes later",
}
# Why the remaining models are not proven, by reading the source at the line that the report names.
OPEN = {
    "deepseek_v4": "which compressed keys a query hears is a top-k of scores, written into a finite mask",
    "doge": "the top-k for the dynamic mask is taken after a finite mask, so a masked key is hidden only by its value",
    "hy_v4": "the indexer's top-k is taken over masked keys too; among equal scores it may return any of them",
    "jetmoe": "the router reads the number of tokens of each expert into a list, and splits by it",
    "longcat_flash": "the loop over experts reads which of them got tokens, and skips the others",
    "xlm": "the length of each row is the number of tokens that are not padding, and an assert reads it",
}


@dataclass
class Row:
    """One model and its verdict."""

    name: str
    verdict: str
    why: str = ""
    seconds: float = 0.0
    """The time of `audit`, without building the model."""
    parameters: int = 0
    unknown: list[str] = field(default_factory=list)
    """Ops without a rule, and places where a value leaves the tensors."""

    def cells(self) -> list[str]:
        unknown = ", ".join(self.unknown) or self.why
        return [self.name, self.verdict, f"{self.seconds:.2f}", unknown[:160].replace("|", "/")]


def names() -> list[str]:
    """The model types that `AutoModelForCausalLM` knows."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return list(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def tiny(name: str, auto: str = "AutoModelForCausalLM") -> torch.nn.Module:
    """A model of that type, small and random."""
    import transformers
    from transformers import CONFIG_MAPPING

    from rearview.auditing.loading.shrinking import shrink

    whole = CONFIG_MAPPING[name]()
    small, _ = shrink(whole.to_dict())
    _windows(small)
    if "is_decoder" in small:
        small["is_decoder"] = auto == "AutoModelForCausalLM"
    small |= COMPLETED.get(name, {})
    torch.manual_seed(0)
    return getattr(transformers, auto).from_config(type(whole).from_dict(small)).eval()


def _windows(config: dict[str, Any]) -> None:
    for name, value in config.items():
        if isinstance(value, dict):
            _windows(value)
        elif name in WINDOWS and isinstance(value, int) and value > WINDOW:
            config[name] = WINDOW


def audited(name: str) -> Row:
    """Build one model, run it once, and audit it."""
    from rearview.auditing import audit

    warnings.simplefilter("ignore")
    if name in NOT_CAUSAL:
        return Row(name, "skipped", NOT_CAUSAL[name])
    tokens = torch.randint(5, 90, (BATCH, TIME), generator=torch.Generator().manual_seed(0))
    try:
        model = tiny(name)
        model(input_ids=tokens)
    except Exception as error:
        return Row(name, "skipped", f"{type(error).__name__}: {' '.join(str(error).split())[:120]}")
    parameters = sum(p.numel() for p in model.parameters())
    started = time.perf_counter()
    try:
        report = audit(model, {"input_ids": tokens})
    except Exception as error:
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        return Row(name, "failed", why, time.perf_counter() - started, parameters)
    proof = report.proof
    unknown = list(dict.fromkeys((*proof.unknown_ops, *proof.value_escapes))) if proof is not None else []
    return Row(name, report.verdict.value, report.why, time.perf_counter() - started, parameters, unknown)


class Worker:
    """Audits models in another process, which is replaced when a model takes longer than `patience` seconds."""

    def __init__(self, patience: float):
        self.patience = patience
        self.process: Any = None

    def audited(self, name: str, settings: Settings) -> Row:
        # The first answer waits for torch and transformers to load.
        loading = 0 if self.process else 120
        if not self.process:
            context = multiprocessing.get_context("spawn")
            self.tasks, self.done = context.Queue(), context.Queue()
            self.process = context.Process(target=_work, args=(self.tasks, self.done), daemon=True)
            self.process.start()
        self.tasks.put(name)
        try:
            row = Row(**self.done.get(timeout=self.patience + loading))
        except queue.Empty:
            died = not self.process.is_alive()
            self.process.kill()
            self.process = None
            why = "the process died" if died else f"took longer than {self.patience:.0f} s"
            row = Row(name, "failed", why, self.patience)
        settings.progress(row.verdict)
        return row


def _work(tasks: Any, done: Any) -> None:
    torch.set_num_threads(1)
    while (name := tasks.get()) is not None:
        done.put(asdict(audited(name)))


def summary(rows: Sequence[Row]) -> list[str]:
    """The shares of the verdicts among audited models, the median time, and the ops without a rule."""
    tried = [row for row in rows if row.verdict != "skipped"]
    counts = Counter(row.verdict for row in rows)
    lines = []
    for name in ORDER:
        if counts[name]:
            share = "" if name == "skipped" else f" ({100 * counts[name] / len(tried):.0f} %)"
            lines.append(f"{name}: {counts[name]}{share}")
    if tried:
        seconds = sorted(row.seconds for row in tried)
        middle, over = seconds[len(seconds) // 2], sum(second > 2 for second in seconds)
        lines.append(f"seconds per model: median {middle:.2f}, largest {seconds[-1]:.2f}, over two: {over}")
    lines += [f"true: {row.name}: {KNOWN[row.name]}" for row in tried if row.verdict == "LEAKS" and row.name in KNOWN]
    unproven = [row for row in tried if row.verdict in ("HELD", "INCONCLUSIVE")]
    lines += [f"not proven: {row.name}: {OPEN.get(row.name, 'not examined yet')}" for row in unproven]
    unknown = Counter(op for row in tried for op in {re.split(r"[ ,]", told)[0] for told in row.unknown})
    return lines + [f"no rule: {op} in {count}" for op, count in unknown.most_common(20)]


class AuditSweep(Suite):
    name, title, suffix = "audit_sweep", "Audit of the causal language models of transformers", "-audit"

    def options(self, add: Callable[..., object]) -> None:
        add("--limit", type=int, help="audit only this many models")
        add("--patience", type=float, default=180, metavar="SECONDS", help="for one model (default 180)")

    def is_whole(self, args: argparse.Namespace) -> bool:
        return super().is_whole(args) and args.limit is None

    def items(self, args: argparse.Namespace) -> list[Case | Task]:
        worker = Worker(args.patience)
        limit = args.limit or (QUICK_MODELS if args.quick else None)
        return [Task(name, partial(worker.audited, name)) for name in names()[:limit]]

    def report(self, args: argparse.Namespace, results: Sequence[object]) -> Report:
        import transformers

        rows = [each for each in results if isinstance(each, Row)]
        version = f"transformers {transformers.__version__}; tiny random models, {BATCH} x {TIME} tokens, one thread"
        table = Table(("model", "verdict", "seconds", "no rule, or why"), [row.cells() for row in rows], True, 2)
        is_wrong = any(row.verdict in ("LEAKS", "failed") and row.name not in KNOWN for row in rows)
        return Report([version, f"{len(rows)} model types", *summary(rows)], [("", table)], is_wrong=is_wrong)


SUITES = (AuditSweep(),)
