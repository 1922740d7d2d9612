"""What is made small, and what never is."""

from rearview.auditing.loading.shrinking import shrink

WHOLE = {
    "model_type": "any",
    "hidden_size": 4096,
    "intermediate_size": [8192, 8192, 8192, 8192],
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 4,
    "layer_types": ["sliding", "sliding", "full", "full"],
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
    "moe_layers": [1, 2, 3],
    "sliding_window": 512,
    "attention_chunk_size": 128,
    "rope_theta": 1e6,
    "max_position_embeddings": 131072,
    "attention_dropout": 0.1,
    "tie_word_embeddings": True,
    "eos_token_id": [1, 90000],
    "pad_token_id": 128001,
    "text_config": {"hidden_size": 2048, "num_hidden_layers": 8},
}


def test_one_layer_of_each_kind_stays():
    small, _ = shrink(WHOLE)
    assert small["layer_types"] == ["sliding", "sliding", "full"]
    assert small["mlp_layer_types"] == ["dense", "sparse", "sparse"]
    assert small["num_hidden_layers"] == 3
    assert small["moe_layers"] == [1, 2], "layers by number follow"
    assert small["intermediate_size"] == [128] * 3


def test_nothing_that_makes_the_mask_is_touched():
    small, changes = shrink(WHOLE)
    for name in (
        "sliding_window",
        "attention_chunk_size",
        "rope_theta",
        "max_position_embeddings",
        "attention_dropout",
    ):
        assert small[name] == WHOLE[name]
        assert not any(change.startswith(name) for change in changes)


def test_key_heads_stay_fewer():
    small, _ = shrink(WHOLE)
    assert (small["num_attention_heads"], small["num_key_value_heads"]) == (4, 2)
    assert shrink({**WHOLE, "num_key_value_heads": 32})[0]["num_key_value_heads"] == 4
    assert shrink({**WHOLE, "num_key_value_heads": 1})[0]["num_key_value_heads"] == 1


def test_special_tokens_stay_in_the_vocabulary():
    small, _ = shrink({**WHOLE, "vocab_size": 150000})
    assert small["vocab_size"] == 97
    assert max(small["eos_token_id"]) < 97
    assert 0 <= small["pad_token_id"] < 97


def test_what_is_inside_is_shrunk_and_told():
    small, changes = shrink(WHOLE)
    assert small["text_config"] == {"hidden_size": 64, "num_hidden_layers": 2}
    assert "text_config.hidden_size 2048 -> 64" in changes
    assert WHOLE["hidden_size"] == 4096, "the original is not changed"


def test_a_small_one_is_left_as_it_is():
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 40}
    assert shrink(small) == (small, [])
