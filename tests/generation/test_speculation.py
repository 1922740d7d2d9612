"""Speculative decoding: the same greedy tokens, the same distribution when sampled, figures, and what is refused."""

import functools
from typing import Any

import pytest
import torch

from rearview import causal, observe, prefix
from rearview.errors import BadArgument, Unsupported
from rearview.generation import LookupDraft, ModelDraft, complete, generate
from rearview.generation.draft_tree import DraftTree
from rearview.generation.lookup_drafter import LookupDrafter
from rearview.models import GPT
from rearview.text import CharTokenizer
from tests.generation.models import MASKS, VOCAB, small_gpt, small_t5
from tests.generation.test_same_tokens import PROMPTS, tokens

CONTEXT = 48
GREEDY: dict[str, Any] = {"temperature": 0}
DRAWN: dict[str, Any] = {"temperature": 1.3, "top_k": 20, "seed": 5}


def target(**changes) -> GPT:
    return small_gpt(context=CONTEXT, **changes)


def weaker(model: GPT, noise: float = 0.02) -> GPT:
    """A model that is often, but not always, of the same opinion."""
    torch.manual_seed(5)
    other = GPT(model.config).eval()
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(noise * parameter.abs().mean() * torch.randn_like(parameter))
    return other


def smaller() -> GPT:
    torch.manual_seed(11)
    return small_gpt(context=CONTEXT, layers=1, heads=2, width=16, positions="rotary")


DRAFTS = {
    "itself, chain": lambda model: ModelDraft(model, tokens=4),
    "itself, tree": lambda model: ModelDraft(model, tokens=12, branches=3),
    "weaker, chain": lambda model: ModelDraft(weaker(model), tokens=4),
    "weaker, tree": lambda model: ModelDraft(weaker(model), tokens=12, branches=3),
    "wide tree": lambda model: ModelDraft(weaker(model), tokens=7, branches=7),
    "smaller, tree": lambda model: ModelDraft(smaller(), tokens=9, branches=2),
    "lookup": lambda model: LookupDraft(tokens=6, longest_match=2),
}
EVERY_DRAFT = pytest.mark.parametrize("draft", DRAFTS.values(), ids=DRAFTS.keys())


# The same tokens.


EVERY = tuple((n, (3 * n) % VOCAB, 7)[: 1 + n % 3] for n in range(8))


@functools.cache
def without_a_draft(mask: str, positions: str, prompts: tuple[tuple[int, ...], ...]) -> list[list[int]]:
    """The greedy tokens after each prompt alone, computed once for all drafts."""
    model = target(mask=MASKS[mask], positions=positions)
    return [tokens(model, list(prompt), **GREEDY)[0] for prompt in prompts]


@EVERY_DRAFT
@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_greedy_tokens_are_the_same(draft, positions):
    model = target(positions=positions)
    plain = without_a_draft("causal", positions, EVERY)
    assert [tokens(model, list(prompt), draft=draft(model), **GREEDY)[0] for prompt in EVERY] == plain
    assert len({token for said in plain for token in said}) > 8


@pytest.mark.parametrize("draft", ["weaker, tree", "weaker, chain"])
@pytest.mark.parametrize("mask", MASKS, ids=MASKS.keys())
def test_masks_count_positions_along_the_path(mask, draft):
    for positions in ("learned", "rotary"):
        model = target(mask=MASKS[mask], positions=positions)
        plain = without_a_draft(mask, positions, tuple(map(tuple, PROMPTS)))
        assert [tokens(model, prompt, draft=DRAFTS[draft](model), **GREEDY)[0] for prompt in PROMPTS] == plain


@pytest.mark.parametrize("draft", ["weaker, tree", "weaker, chain"])
def test_grouped_queries(draft):
    model = target(heads=4, kv_heads=2, positions="rotary")
    assert tokens(model, PROMPTS, draft=DRAFTS[draft](model), **GREEDY) == tokens(model, PROMPTS, **GREEDY)


@EVERY_DRAFT
@pytest.mark.parametrize("mask", ["causal", "sinks"])
def test_several_prompts_in_one_batch(draft, mask):
    model = target(mask=MASKS[mask])
    plain = generate(model, PROMPTS, max_new_tokens=30, **GREEDY)
    steps = list(plain)
    drafted = generate(model, PROMPTS, max_new_tokens=30, draft=draft(model), **GREEDY)
    # Every step has the new token of every sequence, however many tokens a pass gave.
    assert list(drafted) == steps
    assert drafted.reasons == plain.reasons


@EVERY_DRAFT
def test_sequences_end_at_the_same_token(draft):
    model = target()
    free = tokens(model, PROMPTS, **GREEDY)
    ends = [free[0][5], free[2][9]]
    plain = generate(model, PROMPTS, max_new_tokens=40, stop_ids=ends, **GREEDY)
    steps = list(plain)
    drafted = generate(model, PROMPTS, max_new_tokens=40, stop_ids=ends, draft=draft(model), **GREEDY)
    assert list(drafted) == steps
    assert len({len(said) for said in drafted.tokens}) > 1


@EVERY_DRAFT
def test_a_context_that_gets_full(draft):
    model = small_gpt(context=14)
    made = draft(model)
    if isinstance(made, ModelDraft):
        made = ModelDraft(weaker(model), tokens=made.tokens, branches=made.branches)
    plain = generate(model, PROMPTS, max_new_tokens=30, when_full="stop", **GREEDY).finish()
    drafted = generate(model, PROMPTS, max_new_tokens=30, when_full="stop", draft=made, **GREEDY).finish()
    assert drafted.tokens == plain.tokens
    assert drafted.reasons == plain.reasons == ["context full"] * 4


@pytest.mark.parametrize("draft", ["weaker, tree", "lookup"])
@pytest.mark.parametrize("options", [DRAWN, DRAWN | {"repetition_penalty": 1.3}, DRAWN | {"top_p": 0.8}])
def test_sampled_tokens_are_the_same_where_the_draft_does_not_sample(draft, options):
    model = target()
    assert tokens(model, PROMPTS, draft=DRAFTS[draft](model), **options) == tokens(model, PROMPTS, **options)


@pytest.mark.parametrize("draft", ["weaker, tree", "weaker, chain", "lookup"])
def test_a_penalty(draft):
    model = target()
    options = {"temperature": 0, "repetition_penalty": 1.4}
    assert tokens(model, PROMPTS, draft=DRAFTS[draft](model), **options) == tokens(model, PROMPTS, **options)


def test_a_sampled_chain_does_not_depend_on_the_batch():
    model = target()
    draft = ModelDraft(weaker(model), tokens=3)
    alone = [tokens(model, prompt, draft=draft, **DRAWN)[0] for prompt in PROMPTS]
    assert tokens(model, PROMPTS, draft=draft, **DRAWN) == alone


def test_a_caller_may_stop_a_sequence_that_is_ahead():
    model = target()
    generation = generate(model, [[1], [2]], max_new_tokens=20, draft=ModelDraft(model, tokens=5), **GREEDY)
    next(generation)
    generation.stop(1)
    assert next(generation).tokens[1] is None
    plain = tokens(model, [[1], [2]], max_new_tokens=20, **GREEDY)
    assert generation.finish().tokens == [plain[0], plain[1][:1]]


def test_texts_and_stop_strings():
    letters = CharTokenizer("abcdefgh ", specials=("<end>",))
    model = target(vocab_size=letters.vocab_size)
    (plain,) = complete(model, letters, "abc", max_new_tokens=30, stop_ids=[], temperature=0)
    stop = plain.text[7:9]
    (cut,) = complete(model, letters, "abc", max_new_tokens=30, stop_ids=[], stop=stop, temperature=0)
    draft = ModelDraft(weaker(model), tokens=6, branches=2)
    (drafted,) = complete(model, letters, "abc", max_new_tokens=30, stop_ids=[], stop=stop, temperature=0, draft=draft)
    assert drafted == cut
    assert cut.reason == "stop string"


# The distribution.


def pair_counts(model: GPT, draft: ModelDraft | None, samples: int, first_seed: int, **options) -> torch.Tensor:
    vocab = model.config.vocab_size
    seeds = list(range(first_seed, first_seed + samples))
    said = generate(model, [[1, 2]] * samples, max_new_tokens=2, seed=seeds, draft=draft, **options).finish().tokens
    flat = torch.tensor(said)
    return torch.bincount(flat[:, 0] * vocab + flat[:, 1], minlength=vocab**2).double()


@torch.no_grad()
def exact_pairs(model: GPT, temperature: float) -> torch.Tensor:
    """The probability of each pair of tokens after [1, 2], from the model's logits alone."""
    vocab = model.config.vocab_size
    first = (model(torch.tensor([[1, 2]]))[0, -1].double() / temperature).softmax(-1)
    rows = torch.tensor([[1, 2, token] for token in range(vocab)])
    second = (model(rows)[:, -1].double() / temperature).softmax(-1)
    return (first.unsqueeze(1) * second).flatten()


def chi_square(counts: torch.Tensor, probabilities: torch.Tensor) -> tuple[float, int]:
    """The statistic and its degrees of freedom; cells that expect fewer than 5 are joined."""
    expected = probabilities * counts.sum()
    rare = expected < 5
    counts, expected = (torch.cat([each[~rare], each[rare].sum().unsqueeze(0)]) for each in (counts, expected))
    filled = expected > 0
    return float(((counts - expected)[filled] ** 2 / expected[filled]).sum()), int(filled.sum()) - 1


@pytest.mark.parametrize("tree", [{"tokens": 3}, {"tokens": 4, "branches": 2}], ids=["chain", "tree"])
@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_sampled_tokens_have_the_distribution_of_the_model(tree, temperature):
    model = small_gpt(context=8, vocab_size=5, width=16, layers=1)
    torch.manual_seed(23)
    draft = small_gpt(context=8, vocab_size=5, width=8, layers=1, heads=2)
    truth = exact_pairs(model, temperature)
    counts = pair_counts(model, ModelDraft(draft, **tree), 3000, first_seed=100, temperature=temperature)
    statistic, freedom = chi_square(counts, truth)
    # Mean `freedom`, standard deviation sqrt(2 x freedom); the seeds are fixed, so the test always does the same.
    limit = freedom + 4 * (2 * freedom) ** 0.5
    assert freedom > 3
    assert statistic < limit
    # The test can fail: the distribution of the draft is rejected by far.
    wrong, _ = chi_square(counts, exact_pairs(draft, temperature))
    assert wrong > 5 * limit


def test_a_draft_that_is_the_model_is_always_accepted():
    model = target()
    ways: list[dict[str, Any]] = [GREEDY, DRAWN, {**DRAWN, "top_p": 0.7}]
    for options in ways:
        figures = (
            generate(model, PROMPTS, max_new_tokens=30, draft=ModelDraft(model, tokens=4), **options).finish().figures
        )
        assert figures.accepted == figures.drafted > 0
        assert figures.acceptance_rate == 1.0
        # 5 tokens per pass of each sequence.
        assert (figures.tokens, figures.passes) == (4 * 30, 6)


# Figures.


def test_figures():
    model = target()
    plain = generate(model, [1, 2], max_new_tokens=20, **GREEDY).finish().figures
    assert (plain.tokens, plain.passes, plain.drafted, plain.accepted) == (20, 20, 0, 0)
    assert plain.acceptance_rate == 0.0
    assert plain.tokens_per_second == 20 / plain.seconds
    drafted = generate(model, [1, 2], max_new_tokens=20, draft=ModelDraft(weaker(model), tokens=4), **GREEDY)
    figures = drafted.finish().figures
    # Each pass gives what was accepted, and one token more.
    assert figures.tokens == figures.accepted + figures.passes == 20
    assert 0 < figures.accepted < figures.drafted
    assert figures.passes < 20
    assert str(plain).startswith("20 tokens in 20 passes of the model, ")
    assert str(figures).endswith(
        f"; {figures.accepted} of {figures.drafted} drafted tokens accepted ({100 * figures.acceptance_rate:.1f} %)"
    )


def test_a_lookup_proposes_what_followed_before():
    model = target()
    figures = generate(model, PROMPTS, max_new_tokens=40, draft=LookupDraft(tokens=6), **GREEDY).finish().figures
    # The texts repeat themselves, so some proposals are right, and each saves its sequence a pass.
    assert 0 < figures.accepted < figures.drafted
    assert LookupDrafter(tokens=2, longest_match=3).propose([[1, 2, 9, 1, 2]], rooms=[5], samplers=[]) == [
        DraftTree([9, 1], [-1, 0])
    ]
    # With room for two tokens, one is proposed: the pass that checks it adds the other.
    assert LookupDrafter(tokens=2, longest_match=3).propose([[1, 2, 9, 1, 2], [3]], rooms=[2, 9], samplers=[]) == [
        DraftTree([9], [-1]),
        DraftTree(),
    ]


def test_modes_are_restored():
    model, draft = target(dropout=0.5).train(), smaller().train()
    first = tokens(model, [1], draft=ModelDraft(draft, tokens=4, branches=2), **GREEDY)
    assert first == tokens(model, [1], **GREEDY)
    assert model.training
    assert draft.training


# Errors.


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"draft": small_gpt(context=CONTEXT)},
            "draft: expected a ModelDraft or a LookupDraft, got GPT. "
            "To draft with a model, pass draft=ModelDraft(model).",
        ),
        (
            {"draft": ModelDraft(small_gpt(context=CONTEXT, vocab_size=9))},
            "draft: expected a model with the same vocabulary, of 37 tokens, got a model of 9 tokens.",
        ),
        (
            {"draft": ModelDraft(small_gpt(context=4))},
            "draft: expected a model with a context of at least 11 tokens, as many as are read, got a context of 4.",
        ),
    ],
)
def test_drafts_that_do_not_fit(change, message):
    with pytest.raises(BadArgument) as caught:
        generate(target(), [1, 2], max_new_tokens=10, **change)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens": 0}, "draft tokens: expected an integer of at least 1, got 0."),
        ({"branches": 0}, "draft branches: expected an integer of at least 1, got 0."),
        ({"tokens": 3, "branches": 4}, "draft branches: expected at most 3, the number of draft tokens, got 4."),
        ({"model": small_t5()}, "draft: expected a GPT, got T5."),
    ],
)
def test_settings_of_a_draft(options, message):
    with pytest.raises(BadArgument) as caught:
        ModelDraft(**{"model": smaller()} | options)
    assert str(caught.value) == message


def test_settings_of_a_lookup():
    with pytest.raises(BadArgument, match=r"^longest_match: expected an integer of at least 1, got 0\.$"):
        LookupDraft(longest_match=0)


@pytest.mark.parametrize(
    ("model", "options", "reasons", "advice"),
    [
        (
            small_t5(),
            {},
            ["the decoder of a T5 has relative positions, which count the slots of the cache and not the tree"],
            "Generate without a draft.",
        ),
        (
            small_gpt(mask=causal() | prefix(3)),
            {},
            ["the mask causal() | prefix(3) of the model looks ahead, so every new token changes earlier keys"],
            "Generate without a draft.",
        ),
        (
            small_gpt(),
            {"use_cache": False},
            ["the model checks the draft in one pass over the cache, and use_cache=False forbids the cache"],
            "Generate without a draft.",
        ),
        (
            small_gpt(),
            {"max_new_tokens": 16},
            ["the context of 16 tokens would slide before 18 tokens are reached, and a draft cannot follow"],
            'Pass when_full="stop", or generate fewer tokens.',
        ),
    ],
)
def test_what_cannot_be_combined(model, options, reasons, advice):
    with pytest.raises(Unsupported) as caught:
        generate(model, [1, 2], draft=LookupDraft(), **{"max_new_tokens": 3} | options)
    assert str(caught.value) == "\n".join(["speculative decoding:", *(f"  - {reason}" for reason in reasons), advice])


def test_a_draft_that_looks_ahead():
    draft = ModelDraft(small_gpt(mask=causal() | prefix(3)))
    with pytest.raises(Unsupported, match="of the draft looks ahead"):
        generate(small_gpt(), [1, 2], max_new_tokens=3, draft=draft)


@pytest.mark.parametrize("options", [{"tokens": 2}, {"tokens": 2, "branches": 2}])
@pytest.mark.parametrize("temperature", [0, 1.0])
def test_nan_weights_of_a_draft_are_reported(options, temperature):
    draft = smaller()
    with torch.no_grad():
        draft.head.weight[3] = torch.nan
    with pytest.raises(BadArgument, match=r"^draft: expected finite logits"):
        generate(target(), [1], max_new_tokens=4, temperature=temperature, draft=ModelDraft(draft, **options)).finish()


def test_nan_weights_of_the_model_are_reported():
    model = target()
    with torch.no_grad():
        model.head.weight[3] = torch.nan
    for options in (GREEDY, DRAWN):
        with pytest.raises(BadArgument, match=r"^model: expected finite logits"):
            generate(model, [1], max_new_tokens=4, draft=ModelDraft(smaller()), **options).finish()


# Watching.


def test_an_observed_chain_is_the_sequence_and_a_tree_is_refused():
    model = target()
    chain, tree = ModelDraft(weaker(model), tokens=4), ModelDraft(weaker(model), tokens=6, branches=2)
    with observe(model) as plain:
        generate(model, [1, 2, 3], max_new_tokens=21, **GREEDY).finish()
    with observe(model) as drafted:
        generate(model, [1, 2, 3], max_new_tokens=21, draft=chain, **GREEDY).finish()
    # The prompt and all new tokens but the last; the last pass may have read guesses beyond them.
    ours, theirs = (seen.layers[0].statistics.lse for seen in (drafted, plain))
    assert theirs.shape[-1] == 23
    torch.testing.assert_close(ours[..., :23], theirs)
    with pytest.raises(Unsupported) as caught, observe(model):
        generate(model, [1, 2, 3], max_new_tokens=9, draft=tree, **GREEDY).finish()
    assert str(caught.value) == (
        "The tree of a draft cannot be watched:\n"
        "  - its nodes are alternatives, which are not positions of one sequence\n"
        "Draft a chain (branches=1), or generate first and then watch the model over the text."
    )
