"""The small value of each size in a configuration, by the names that transformers uses.

>>> WIDTHS["hidden_size"], WIDTHS["num_experts"], COUNTS["first_k_dense_replace"]
(64, 4, 1)

Products that models check are kept: heads x head_dim = hidden.
"""

from __future__ import annotations

HIDDEN, HEADS, HEAD_DIM, VOCAB, LAYERS = 64, 4, 16, 97, 2


def _each(size: int, names: str) -> dict[str, int]:
    return dict.fromkeys(names.split(), size)


# The new value of each, unless it is smaller already.
WIDTHS: dict[str, int] = {
    **_each(
        HIDDEN,
        """hidden_size d_model n_embd dim emb_dim embedding_dim embedding_size
        input_embedding_size output_embedding_size word_embed_proj_dim lru_width out_hidden_size hidden_size_global
        backbone_hidden_size shape_embed_dim pronunciation_embed_dim projector_output_dim vision_output_dim
        cross_attention_hidden_size embed_dim ple_embed_dim""",
    ),
    **_each(
        2 * HIDDEN,
        """intermediate_size ffn_dim ffn_hidden_size d_ff dim_ff dff d_inner n_inner decoder_ffn_dim encoder_ffn_dim
        feed_forward_size dense_intermediate_size intermediate_size_mlp mlp_dim mamba_d_ssm""",
    ),
    **_each(
        HIDDEN // 2,
        """moe_intermediate_size shared_expert_intermediate_size expert_ffn_hidden_size shared_intermediate_size
        moe_shared_expert_intermediate_size router_hidden_size q_lora_rank kv_lora_rank o_lora_rank adapter_rank
        hc_lowrank laurel_rank d_rel""",
    ),
    **_each(
        HEADS,
        """num_attention_heads n_head n_heads num_heads decoder_attention_heads encoder_attention_heads attention_heads
        num_encoder_attention_heads num_decoder_attention_heads swa_num_attention_heads conf_num_attention_heads""",
    ),
    **_each(
        HEAD_DIM,
        """head_dim dim_head d_head d_kv kv_channels attention_head_size swa_head_dim global_head_dim qk_nope_head_dim
        v_head_dim linear_key_head_dim linear_value_head_dim linear_head_dim index_head_dim mamba_d_head
        mamba_head_dim mamba_headdim mamba_d_state state_size ssm_state_size hidden_size_per_layer_input""",
    ),
    **_each(HEAD_DIM // 2, "qk_rope_head_dim rotary_dim"),
    **_each(HEAD_DIM + HEAD_DIM // 2, "qk_head_dim"),
    **_each(VOCAB, "vocab_size decoder_vocab_size vocab_size_per_layer_input encoder_hash_byte_group_vocab"),
    **_each(8, "mamba_n_heads mamba_num_heads"),
    **_each(
        4,
        """num_experts num_local_experts n_routed_experts moe_num_experts zero_expert_num mamba_dt_rank
        time_step_rank""",
    ),
    **_each(
        2,
        """num_experts_per_tok num_experts_per_token moe_topk moe_top_k moe_k linear_num_key_heads
        linear_num_value_heads linear_num_heads index_n_heads o_groups""",
    ),
    **_each(
        1,
        """n_shared_experts num_shared_experts moe_num_shared_experts n_group num_expert_group topk_group
        mamba_n_groups mamba_ngroups n_groups""",
    ),
}
# The ratio of key heads to query heads is kept where possible.
KEY_HEADS = ("num_key_value_heads", "num_kv_heads", "kv_n_heads", "swa_num_key_value_heads", "num_query_groups")
QUERY_HEADS = ("num_attention_heads", "n_head", "n_heads")
DEPTHS = (
    "num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers", "num_blocks",
    "num_decoder_layers", "num_encoder_layers", "conf_num_hidden_layers", "num_global_layers", "depth",
    "num_layers_per_stack",
)  # fmt: skip
# Which layers are dense, and how many share keys and values: fewer, so that two layers hold both kinds.
COUNTS = {
    **_each(1, "first_k_dense_replace num_dense_layers max_window_layers moe_layer_start_index"),
    **_each(1, "attn_layer_offset expert_layer_offset"),
    **_each(2, "attn_layer_period expert_layer_period"),
    **_each(0, "num_kv_shared_layers num_nextn_predict_layers"),
}
# The heads of a state space divide its expanded width among them: (expansion, heads, width of a head).
STATE_SPACES = (
    ("expand", "num_heads", "head_dim"),
    ("mamba_expand", "mamba_n_heads", "mamba_d_head"),
    ("mamba_expand", "n_mamba_heads", "mamba_headdim"),
)
