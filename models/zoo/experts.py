"""Mixtures of experts and state-space models, of transformers: what a token meets depends on the data."""

from zoo.decoders import GROUPED, decoder
from zoo.entry import Family

FAMILY = Family("Mixtures of experts, state spaces (transformers)")

EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
QWEN = dict(
    num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=32,
    decoder_sparse_step=1, mlp_only_layers=[],
)  # fmt: skip
STATES = dict(
    vocab_size=50, hidden_size=16, num_hidden_layers=2, state_size=4, expand=2, conv_kernel=4, use_cache=False,
    pad_token_id=0, bos_token_id=1, eos_token_id=1, time_step_rank=4,
)  # fmt: skip
for kind in "eager", "batched_mm":
    FAMILY.add(f"Mixtral, {kind}", decoder("Mixtral", GROUPED | EXPERTS | {"experts_implementation": kind}), reasons={
        "dynamo": "traces no loop over the experts that some token chooses: batched_mm runs all of them",
    } if kind == "eager" else {})  # fmt: skip
BATCHED = {"experts_implementation": "batched_mm"}  # neither exporter knows the default, grouped_mm
FAMILY.add("Qwen2-MoE, batched_mm", decoder("Qwen2Moe", GROUPED | QWEN | BATCHED))
FAMILY.add("Qwen3-MoE, batched_mm", decoder("Qwen3Moe", GROUPED | QWEN | BATCHED | {"head_dim": 8}))
FAMILY.add("GPT-OSS, batched_mm", decoder("GptOss", GROUPED | EXPERTS | BATCHED | {"head_dim": 8, "sliding_window": 4}))
FAMILY.add("Mamba", decoder("Mamba", STATES, mask=False))
FAMILY.add("Falcon-Mamba", decoder("FalconMamba", STATES, mask=False))
FAMILY.add("RWKV", decoder("Rwkv", dict(
    vocab_size=50, context_length=16, hidden_size=16, num_hidden_layers=2, attention_hidden_size=16, use_cache=False,
    bos_token_id=1, eos_token_id=1,
), mask=False))  # fmt: skip
